#include "tuning/budget.hpp"

#include <algorithm>
#include <utility>

namespace packjit {

Budget::Budget(std::function<double()> clock, double seconds)
    : clock_(std::move(clock)), total_(seconds), end_(clock_() + seconds) {}

double Budget::estimate(Step step, int units) const {
  double most = 0;
  for (const Seen& seen : seen_[static_cast<std::size_t>(step)]) {
    if (seen.units == 0) continue;
    most = std::max(most, seen.seconds * units / seen.units);
  }
  return most;
}

void Budget::spent(Step step, int units, double begin) {
  auto& seen = seen_[static_cast<std::size_t>(step)];
  std::rotate(seen.begin(), seen.end() - 1, seen.end());
  seen.front() = {units, clock_() - begin};
}

}  // namespace packjit
