#include "tuning/comparison.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

namespace packjit {
namespace {

/// How many of the `n` largest and smallest values can be left out so that the median still lies between the rest with
/// 99 %; -1 where there are too few. Each value is above the median with a probability of one half.
int left_out(int n) {
  constexpr double kOneSide = 0.005;
  double probability = 1;
  for (int i = 0; i < n; ++i) probability /= 2;
  double sum = 0;
  for (int k = 0; k <= n / 2; ++k) {
    sum += probability;  // of at most k on one side
    if (sum > kOneSide) return k - 1;
    probability *= static_cast<double>(n - k) / (k + 1);
  }
  return n / 2;
}

}  // namespace

Comparison compare(std::span<const double> first, std::span<const double> second) {
  const std::size_t n = std::min(first.size(), second.size());
  if (n == 0) throw std::invalid_argument("comparing two times: there is no round in which both were measured");
  std::vector<double> ratios;
  ratios.reserve(n);
  for (std::size_t i = 0; i < n; ++i) ratios.push_back(first[i] / second[i]);
  std::ranges::sort(ratios);
  Comparison result;
  result.rounds = static_cast<int>(n);
  result.ratio = n % 2 == 1 ? ratios[n / 2] : (ratios[n / 2 - 1] + ratios[n / 2]) / 2;
  const int out = left_out(result.rounds);
  if (out < 0) {
    result.high = std::numeric_limits<double>::infinity();
  } else {
    result.low = ratios[static_cast<std::size_t>(out)];
    result.high = ratios[n - 1 - static_cast<std::size_t>(out)];
  }
  return result;
}

bool is_faster(const Comparison& comparison) { return comparison.ratio < 1 - kLeastGain && comparison.high < 1; }

bool is_undecided(const Comparison& comparison) { return comparison.ratio < 1 - kLeastGain && comparison.high >= 1; }

}  // namespace packjit
