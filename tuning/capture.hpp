#pragma once

#include <span>
#include <vector>

#include "runtime/capture.hpp"
#include "tuning/trial.hpp"

namespace packjit {

/// One target for each Spec and bucket, with the batch that was called most among those that fall into it; what was
/// called most, first.
[[nodiscard]] std::vector<TuningTarget> targets_of_capture(std::span<const CapturedShape> shapes);

}  // namespace packjit
