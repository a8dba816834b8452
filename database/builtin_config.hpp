#pragma once

#include <string>

#include "database/workload.hpp"
#include "generator/operators.hpp"

namespace packjit {

/// Stands for an architecture where source is to compile for all of them.
inline constexpr const char* kAnyArch = "any";

/// The launch configuration used where nothing was tuned: chosen by architecture ("sm_90", "host"), by d_state or
/// conv_width, and by whether there is enough work to fill a large GPU; always within the limits of every architecture
/// that NVRTC lists.
[[nodiscard]] Config builtin_config(const Spec& spec, const std::string& arch, const Workload& work = {});

}  // namespace packjit
