#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/loss_weights.hpp"
#include "packing/training_stream.hpp"
#include "packjit/packjit.h"

namespace packjit::api {

/// The steps of one rank with the arrays that training needs. After an exception it is as it was before.
class Packer {
 public:
  /// Throws std::invalid_argument for options, documents or ranks out of range.
  Packer(const packjit_packer_options& options, const packjit_documents& documents);

  /// Its arrays are valid until the next call of next() or resume().
  [[nodiscard]] packjit_step next();

  [[nodiscard]] packjit_packer_position position() const;
  void resume(const packjit_packer_position& position);
  [[nodiscard]] packjit_packer_info info() const;
  [[nodiscard]] packjit_packer_statistics statistics() const;

 private:
  /// What the pointers of a step point to.
  struct Arrays {
    std::vector<packjit_piece> pieces;
    std::vector<std::int32_t> position_indices, seq_idx;
    std::vector<std::int64_t> cu_seqlens, document_ids, document_offsets;
    std::vector<float> loss_weights;
  };
  [[nodiscard]] Arrays arrays_of(const Call& call, std::span<const StateHandover> handovers) const;

  TrainingStream stream_;
  LossUnit loss_unit_;
  LastToken last_token_;
  std::uint64_t loss_mark_;  ///< in the fingerprint of positions, beside what the stream's has; 0 by default
  std::int64_t max_sequences_;
  Arrays arrays_;  ///< of the last step
};

}  // namespace packjit::api
