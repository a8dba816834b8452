#pragma once

#include <span>
#include <string>
#include <vector>

#include "generator/operators.hpp"

namespace packjit {

/// What is asked of the operators, apart from lengths.
struct OperatorChoices {
  std::int64_t dim = 4096;
  int d_state = 16;
  int conv_width = 4;
  std::string dtype = "bf16";
};
[[nodiscard]] Spec spec_for(Operator op, const OperatorChoices& choices);

/// One way to divide the work of a scan between forward and backward.
struct Variant {
  std::string label;  ///< empty where the operator has no such choice
  Spec spec;
};
/// The Spec as it is, and where it has the field `checkpoints` one Spec for each of its values, the default first.
[[nodiscard]] std::vector<Variant> variants_of(const Spec& spec);

/// A Config with what `settings` change: "key=value" for every operator, "OPERATOR.key=value" for one. Throws
/// std::invalid_argument for a setting of another form, a field the operator does not have or a value out of range.
[[nodiscard]] Config with_settings(Config config, std::span<const std::string> settings);

/// Bytes of all tensors of one call, inputs and outputs.
[[nodiscard]] std::int64_t tensor_bytes(const Spec& spec, const Sizes& sizes);
/// Bytes that a forward has to keep for the backward beyond the operator's own inputs: tensors that it writes and the
/// backward reads.
[[nodiscard]] std::int64_t saved_bytes(const Spec& forward, const Spec& backward, const Sizes& sizes);

/// Whether the Spec has the tensor.
[[nodiscard]] bool has_tensor(const Spec& spec, const TensorRule& rule);
[[nodiscard]] std::int64_t element_count(const TensorRule& rule, const Sizes& sizes);
[[nodiscard]] std::int64_t element_bytes(const TensorRule& rule, const Spec& spec);

}  // namespace packjit
