#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checking/matrix.hpp"

namespace packjit::checking {

using Kernel = std::pair<Spec, Config>;

/// The kernel that run_case will load for a case; `config` replaces the case's own.
[[nodiscard]] Kernel kernel_of(const Case& check_case, const Config& config);

/// The kernels of a whole matrix without repetition, so that they can be compiled several at a time beforehand. A few
/// that only `cut` needs may be missing.
[[nodiscard]] std::vector<Kernel> kernels_of(const std::vector<PlannedCase>& matrix, const std::string& arch);

}  // namespace packjit::checking
