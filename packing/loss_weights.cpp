#include "packing/loss_weights.hpp"

#include <stdexcept>
#include <string>

#include "packing/boundaries.hpp"

namespace packjit {

std::vector<float> loss_weights(const Call& call, std::int64_t pack_length, std::span<const Document> documents,
                                LossUnit unit, LastToken last) {
  std::vector<float> weights;
  weights.reserve(call.rows.size() * static_cast<std::size_t>(pack_length));
  for (const Row& row : call.rows) {
    const std::int64_t padding = padding_of(row, pack_length);
    for (const Piece& piece : row.pieces) {
      if (piece.document < 0 || piece.document >= static_cast<std::int64_t>(documents.size())) {
        throw std::invalid_argument("packing: loss weights of document " + std::to_string(piece.document) + ", but " +
                                    std::to_string(documents.size()) + " documents were given");
      }
      const std::int64_t dropped = last == LastToken::is_dropped ? 1 : 0;
      const std::int64_t counted = documents[static_cast<std::size_t>(piece.document)].length - dropped;
      const float weight =
          unit == LossUnit::token || counted == 0 ? 1.0F : static_cast<float>(1.0 / static_cast<double>(counted));
      weights.insert(weights.end(), static_cast<std::size_t>(piece.length), weight);
      if (!piece.more && dropped > 0) weights.back() = 0;
    }
    weights.insert(weights.end(), static_cast<std::size_t>(padding), 0.0F);
  }
  return weights;
}

}  // namespace packjit
