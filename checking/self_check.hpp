#pragma once

#include "checking/case.hpp"

namespace packjit::checking {

/// The small case that makes a run load exactly this kernel. The pair is as specialise() leaves it.
[[nodiscard]] Case self_check_case(const Spec& spec, const Config& config);

/// Runs the kernel once and compares with the oracle; for sequence_map, with the map that the host builds. Throws
/// CheckFailed that describes the worst result. The scan's backward with stored checkpoints also loads the forward that
/// stores them.
void self_check(Device& device, const Spec& spec, const Config& config);

}  // namespace packjit::checking
