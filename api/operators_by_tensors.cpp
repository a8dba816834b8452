#include "api/operators_by_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "api/operator_options.hpp"

namespace packjit::api {
namespace {

// Places in tensor_rules() of both directions: u and x come first, weight of (dim, conv_width), A of (dim, d_state).
constexpr std::size_t kFirst = 0, kWeight = 1, kA = 2, kB = 3, kC = 4;

}  // namespace

OperatorsByTensors::Kind OperatorsByTensors::kind_of(Operator op, bool fused, GivenTensors tensors) {
  std::uint32_t present = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) present |= std::uint32_t{tensors[i] != nullptr} << i;
  const packjit_tensor* first = tensors[kFirst];
  const packjit_tensor* parameter = tensors[is_scan(op) ? kA : kWeight];
  const auto rank_at = [&](std::size_t place) {
    return is_scan(op) && tensors[place] != nullptr ? tensors[place]->rank : 0;
  };
  return {op,
          fused,
          present,
          first == nullptr ? 0 : first->dtype,
          parameter == nullptr ? 0 : parameter->dtype,
          parameter == nullptr || parameter->rank < 1 ? 0 : parameter->shape[parameter->rank - 1],
          rank_at(kB),
          rank_at(kC)};
}

PackedOperator& OperatorsByTensors::find(Operator op, bool fused, GivenTensors tensors) {
  const Kind kind = kind_of(op, fused, tensors);
  {
    const std::shared_lock lock(mutex_);
    const auto found = operators_.find(kind);
    if (found != operators_.end()) return *found->second;
  }
  static_cast<void>(activation_dtype(kind.dtype, fmt::format("tensor {}: dtype", tensor_rules(op)[kFirst].name)));
  packjit_operator_options options = options_with(op, tensors);
  const std::int32_t fused_option = fused ? PACKJIT_ON : PACKJIT_OFF;
  options.dtype = kind.dtype;
  // What no operator has is told by its number, whatever its size.
  const auto size = static_cast<std::int32_t>(std::clamp<std::int64_t>(kind.size, -1, INT32_MAX));
  if (is_scan(op)) {
    options.op = PACKJIT_SSM_PACK;
    options.d_state = size;
    options.softplus = fused_option;
    options.constant_B = kind.rank_B == 2 ? PACKJIT_ON : PACKJIT_OFF;
    options.constant_C = kind.rank_C == 2 ? PACKJIT_ON : PACKJIT_OFF;
    options.complex_A = kind.parameter_dtype == PACKJIT_COMPLEX64 ? PACKJIT_ON : PACKJIT_OFF;
  } else {
    options.op = PACKJIT_CONV1D_PACK;
    options.conv_width = size;
    options.silu = fused_option;
    const bool half = kind.dtype != PACKJIT_FP32;
    options.fp32_weights = half && kind.parameter_dtype == PACKJIT_FP32 ? PACKJIT_ON : PACKJIT_OFF;
  }
  auto made = std::make_unique<PackedOperator>(backend_, options);
  const std::unique_lock lock(mutex_);
  return *operators_.try_emplace(kind, std::move(made)).first->second;
}

}  // namespace packjit::api
