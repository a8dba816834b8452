#pragma once

#include <utility>

#include "generator/operators.hpp"
#include "packjit/packjit.h"

namespace packjit::api {

/// The Specs of forward and backward. Throws std::invalid_argument naming the option, what was given and what is
/// allowed.
[[nodiscard]] std::pair<Spec, Spec> specs_of(const packjit_operator_options& options);

}  // namespace packjit::api
