#pragma once

#include <cstdint>
#include <string>

#include "generator/operators.hpp"

namespace packjit {

/// Stands for an architecture where source is to compile for all of them.
inline constexpr const char* kAnyArch = "any";

/// How much there is to do in one call, as far as the host knows. The default is "much".
struct Workload {
  std::int64_t tokens = std::int64_t{1} << 20;
  std::int64_t sequences = std::int64_t{1} << 20;
  std::int64_t dim = 4096;
  std::int64_t longest = 1;  ///< tokens of the longest sequence
};

/// The launch configuration used where nothing was tuned: chosen by architecture ("sm_90", "host"), by d_state or
/// conv_width, and by whether there is enough work to fill a large GPU; always within the limits of every architecture
/// that NVRTC lists.
[[nodiscard]] Config builtin_config(const Spec& spec, const std::string& arch, const Workload& work = {});

}  // namespace packjit
