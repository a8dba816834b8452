#pragma once

#include <cstddef>
#include <span>

#include "generator/operators.hpp"
#include "runtime/driver.hpp"

namespace packjit {

/// Launches a kernel on a stream of the current context. Internal. `argument` is the kernel's one parameter, which the
/// driver copies.
[[nodiscard]] CUresult launch_kernel(const Driver& driver, CUfunction function, CUstream stream,
                                     const KernelLaunch& launch, std::span<const std::byte> argument);

/// "could not launch kernel NAME with grid...", for what launch_kernel() gave.
[[nodiscard]] std::string describe_launch_failure(const Driver& driver, CUresult status, const KernelLaunch& launch,
                                                  const std::string& gpu);

}  // namespace packjit
