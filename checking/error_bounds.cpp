#include "checking/error_bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace packjit::checking {

double relative_error(std::span<const double> actual, std::span<const double> reference) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (actual.size() != reference.size()) return kNever;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(reference[i])) return kNever;
    difference += (actual[i] - reference[i]) * (actual[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double reduction_length(std::int64_t longest_sequence, double mean_dt_A) {
  const auto longest = static_cast<double>(longest_sequence);
  if (!(mean_dt_A < 0)) return longest;
  return std::min(longest, 1 / -std::expm1(mean_dt_A));
}

double error_bound(Operator op, Dtype dtype, std::string_view tensor, double reduction) {
  static constexpr std::array kFp32Gradients = {"dA", "dD", "ddelta_bias", "dweight", "dbias"};
  static constexpr std::array kStates = {"initial_states", "final_states", "dinitial_states", "dfinal_states"};
  const double rounding = reduction * 0x1p-24;
  if (dtype == Dtype::fp32) return std::max(1e-5, rounding);
  const bool fp32_output = std::ranges::find(kFp32Gradients, tensor) != kFp32Gradients.end() ||
                           (is_scan(op) && std::ranges::find(kStates, tensor) != kStates.end());
  if (fp32_output) return std::max(1e-4, rounding);
  return dtype == Dtype::fp16 ? 1e-3 : 4e-3;
}

}  // namespace packjit::checking
