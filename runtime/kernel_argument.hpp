#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "runtime/operator_call.hpp"
#include "templates/device/conv_arguments.cuh"
#include "templates/device/ssm_arguments.cuh"

namespace packjit {

/// The one argument of an operator's kernels, as host and device both lay it out.
struct KernelArgument {
  std::variant<ConvArguments, SsmArguments> value;
  [[nodiscard]] std::span<const std::byte> bytes() const;
};

/// Fills the argument from checked tensors. Absent tensors become null.
[[nodiscard]] KernelArgument kernel_argument(const Spec& spec, const Config& config, const Problem& problem,
                                             const TensorViews& tensors, const MappedSequences& sequences,
                                             void* workspace);

}  // namespace packjit
