#pragma once

#include <span>
#include <vector>

#include "generator/operators.hpp"
#include "runtime/device.hpp"
#include "runtime/tensor.hpp"
#include "tuning/batch_shape.hpp"

namespace packjit {

/// Dense tensors of one or more operators in device memory, in several sets of the same contents: random, of the scale
/// that a Mamba model has. Tensors of one name are the same tensor for all operators, so that a backward reads what the
/// forward wrote. Must not outlive the device.
class BatchTensors {
 public:
  BatchTensors(Device& device, std::span<const Spec> specs, const Sizes& sizes, int sets, std::uint64_t seed);

  [[nodiscard]] int sets() const { return static_cast<int>(sets_.size()); }
  /// Those of one of the operators.
  [[nodiscard]] TensorViews views(const Spec& spec, int set) const;

 private:
  void fill(Device& device, const TensorRule& rule, std::int64_t d_state, std::uint64_t seed);

  std::vector<Buffer> buffers_;
  std::vector<TensorViews> sets_;
};

/// One sequence as a batch of its own, without copying: the tokens of `place` in each tensor that has tokens. Sums over
/// all tokens (dA, dweight...) stay whole tensors.
[[nodiscard]] TensorViews sequence_views(const TensorViews& views, Operator op, const SequencePlace& place);

}  // namespace packjit
