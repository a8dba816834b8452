#pragma once

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "generator/ssm_pack.hpp"
#include "runtime/operator_call.hpp"
#include "templates/device/conv_arguments.cuh"
#include "templates/device/ssm_arguments.cuh"

namespace packjit {

/// The one argument of an operator's kernels, as host and device both lay it out.
struct KernelArgument {
  std::variant<ConvArguments, SsmArguments> value;
  [[nodiscard]] std::span<const std::byte> bytes() const;
};

/// The argument of calls that differ in addresses only. Immutable; concurrent use is safe.
class ArgumentForm {
 public:
  /// From checked tensors, whose addresses are not looked at.
  ArgumentForm(const Spec& spec, const Config& config, const Problem& problem, const TensorViews& tensors);

  /// Addresses in the order of tensor_rules(spec.op), null where there is no tensor. Takes no memory.
  [[nodiscard]] KernelArgument with(std::span<void* const> tensors, const MappedSequences& sequences,
                                    void* workspace) const;
  /// The same by name.
  [[nodiscard]] KernelArgument with(const TensorViews& tensors, const MappedSequences& sequences,
                                    void* workspace) const;

 private:
  Operator op_;
  bool segmented_;  // of scans
  SsmWorkspace space_;
  std::variant<ConvArguments, SsmArguments> sizes_;
  std::vector<std::size_t> places_;  // of the address of each tensor, as an offset into the argument
};

}  // namespace packjit
