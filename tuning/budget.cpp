#include "tuning/budget.hpp"

#include <algorithm>
#include <utility>

namespace packjit {

Budget::Budget(std::function<double()> clock, double seconds)
    : clock_(std::move(clock)), total_(seconds), end_(clock_() + seconds) {}

double Budget::estimate(Step step, int units) const {
  const auto& seen = seen_[static_cast<std::size_t>(step)];
  const Seen& largest = *std::ranges::max_element(seen, {}, &Seen::units);
  if (largest.units == 0) return 0;
  const double rate = largest.seconds / largest.units;
  double once = 0;
  for (const Seen& one : seen) once = std::max(once, one.seconds - rate * one.units);
  return once + rate * units;
}

void Budget::spent(Step step, int units, double begin) {
  auto& seen = seen_[static_cast<std::size_t>(step)];
  std::rotate(seen.begin(), seen.end() - 1, seen.end());
  seen.front() = {units, clock_() - begin};
}

}  // namespace packjit
