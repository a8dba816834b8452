#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checking/case.hpp"
#include "checking/report.hpp"

namespace packjit::checking {

/// A case and what to check on it.
struct PlannedCase {
  Case check_case;
  std::vector<CheckKind> checks;
};

/// How much `default_matrix` covers. `quick`: every operator and dtype once, oracle and isolation. `reduced`: the
/// default of host execution. `full`: larger sizes as well, for a GPU.
enum class Coverage { quick, reduced, full };

/// Lengths that meet every boundary inside the kernels: 1, W-1, W, W+1, tile-1, tile, tile+1, a row of one long
/// sequence, many of one token, random ones, padding left, right and between. W is the number of taps (4 for a scan).
[[nodiscard]] std::vector<Row> telling_rows(std::int64_t taps, std::int64_t tile, std::uint64_t seed, bool padding);

[[nodiscard]] std::vector<PlannedCase> default_matrix(const std::string& arch, Coverage coverage);

/// Every check that a single case allows.
[[nodiscard]] std::vector<CheckKind> all_checks();

/// Runs one plan. `orders` are host devices with other thread orders; without any, that check is left out.
[[nodiscard]] std::vector<Result> run_plan(Device& device, std::span<Device* const> orders, const PlannedCase& plan);

}  // namespace packjit::checking
