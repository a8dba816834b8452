#pragma once

#include <cstdint>
#include <span>

#include "packing/packing.hpp"

namespace packjit {

// Of the options these take `cut` (not 0 here), `cut_slack` and `min_piece`.

/// Where the piece that begins at `offset` ends (exclusive): at the end of the document if that is within `cut` tokens.
/// Otherwise both this piece and what remains have at least `min_piece` tokens, and the end is the last break that
/// allows this and lies within the last `cut_slack` tokens before the limit; without one, the limit, which is `cut`
/// tokens or what `min_piece` leaves of them.
[[nodiscard]] std::int64_t piece_end(const Document& document, std::int64_t offset, const PackOptions& options);

/// The piece of document number `index` that begins at `offset`.
[[nodiscard]] Piece piece_at(const Document& document, std::int64_t index, std::int64_t offset,
                             const PackOptions& options);

/// The number of pieces of a document; stops counting above `limit`.
[[nodiscard]] std::int64_t count_pieces(const Document& document, const PackOptions& options, std::int64_t limit);

/// The most pieces that `tokens` tokens can hold, whatever the method and the order: of the shortest ones.
[[nodiscard]] std::int64_t most_pieces_in(std::int64_t tokens, std::span<const Document> documents,
                                          const PackOptions& options);

}  // namespace packjit
