#pragma once

#include <string>

#include "generator/operators.hpp"

namespace packjit {

/// The launch configuration used where nothing was tuned: chosen by architecture ("sm_90", "host") and by d_state or
/// conv_width, always within the limits of every architecture that NVRTC lists.
[[nodiscard]] Config builtin_config(const Spec& spec, const std::string& arch);

}  // namespace packjit
