#pragma once

#include <cstdint>

#include "packing/packing.hpp"

namespace packjit {

/// Where the piece that begins at `offset` ends (exclusive), when pieces have at most `cut` tokens: at the end of the
/// document if that is within reach, else at the last break within reach, else after `cut` tokens.
[[nodiscard]] std::int64_t piece_end(const Document& document, std::int64_t offset, std::int64_t cut);

/// The piece of document number `index` that begins at `offset`.
[[nodiscard]] Piece piece_at(const Document& document, std::int64_t index, std::int64_t offset, std::int64_t cut);

/// The number of pieces of a document; stops counting above `limit`.
[[nodiscard]] std::int64_t count_pieces(const Document& document, std::int64_t cut, std::int64_t limit);

}  // namespace packjit
