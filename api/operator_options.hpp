#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "api/tensors.hpp"
#include "generator/operators.hpp"
#include "packjit/packjit.h"

namespace packjit::api {

/// The Specs of forward and backward. Throws std::invalid_argument naming the option, what was given and what is
/// allowed.
[[nodiscard]] std::pair<Spec, Spec> specs_of(const packjit_operator_options& options);

/// The dtype of an operator's activations; `what` names where it was given in the error's message.
[[nodiscard]] Dtype activation_dtype(std::int32_t dtype, std::string_view what);

/// Options that say which tensors there are, as these do; nothing else is set.
[[nodiscard]] packjit_operator_options options_with(Operator op, GivenTensors tensors);

}  // namespace packjit::api
