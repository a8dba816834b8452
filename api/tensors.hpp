#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"
#include "packjit/packjit.h"
#include "runtime/tensor.hpp"

namespace packjit::api {

/// The caller's tensors of one call, in the order of tensor_rules(op); null where there is none.
using GivenTensors = std::span<const packjit_tensor* const>;
inline constexpr std::size_t kMostTensors = 21;  ///< of any operator

/// Throws std::invalid_argument for numbers that stand for nothing. `what` names the value in the message.
[[nodiscard]] ElementType element_type(std::int32_t dtype, std::string_view what);
[[nodiscard]] std::int32_t c_dtype(ElementType type);

/// Checks the struct itself: its size, dtype, rank, sizes and that there is memory. Throws std::invalid_argument.
void check_tensor(const packjit_tensor* tensor, std::string_view name);
[[nodiscard]] TensorView view_of(const packjit_tensor& tensor, std::string_view name);
/// A copy of dense host memory.
[[nodiscard]] HostTensor host_copy(const packjit_tensor* tensor, std::string_view name);

/// Where the C struct of an operator's tensors has its pointers, as offsets in the order of tensor_rules(op).
[[nodiscard]] std::span<const std::size_t> tensor_offsets(Operator op);

}  // namespace packjit::api
