#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// What the loss counts alike.
enum class LossUnit {
  token,    ///< every token weighs 1: long documents count more
  document  ///< the tokens of a document weigh 1 together, wherever it was cut
};

/// The last token of a document has no next token to predict. (The last token of a piece that others follow has one:
/// the first of the next piece.)
enum class LastToken { counts, is_dropped };

/// The weight of each token of a call, (rows, pack_length) row-major; padding weighs 0. Divide the weighted sum of
/// losses by the sum of the weights of the whole step (all micro-batches and ranks), not of one call. `documents` are
/// those of the plan. A document of one token weighs nothing where its last token is dropped. Throws
/// std::invalid_argument for a row that is too long and for a document that is not there.
[[nodiscard]] std::vector<float> loss_weights(const Call& call, std::int64_t pack_length,
                                              std::span<const Document> documents, LossUnit unit, LastToken last);

}  // namespace packjit
