#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "generator/operators.hpp"

namespace packjit::checking {

/// |actual - reference| / |reference| in the L2 norm; |actual| where the reference is zero. Infinite where a value is
/// NaN or infinite on either side, or where the sizes differ: such a result never passes.
[[nodiscard]] double relative_error(std::span<const double> actual, std::span<const double> reference);

/// False for a NaN on either side.
[[nodiscard]] constexpr bool within(double error, double bound) { return error <= bound; }

/// M of docs/design.md, "Numbers": over how many tokens rounding errors of the slowest state add up:
/// min(longest_sequence, 1 / (1 - exp(mean_dt_A))). `mean_dt_A` at or above zero gives the longest sequence.
[[nodiscard]] double reduction_length(std::int64_t longest_sequence, double mean_dt_A);

/// The largest relative error allowed for one output tensor ("du", "final_states") of an operator. `reduction` is
/// reduction_length for a scan and 0 for a convolution.
[[nodiscard]] double error_bound(Operator op, Dtype dtype, std::string_view tensor, double reduction);

}  // namespace packjit::checking
