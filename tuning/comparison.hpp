#pragma once

#include <span>

namespace packjit {

/// Two kernels timed in the same rounds: the ratio of their times, round by round. What slows a whole round down,
/// slows both, and cancels.
struct Comparison {
  double ratio = 1;  ///< median: below 1 where the first is faster
  double low = 0,
         high = 0;  ///< between which the true median lies with 99 %: order statistics of the ratios, so nothing is
                    ///< assumed about how noise is distributed; 0 and infinity with fewer than 8 rounds
  int rounds = 0;
};

/// Rounds beyond the shorter of the two are left out. Throws std::invalid_argument where no round is left.
[[nodiscard]] Comparison compare(std::span<const double> first, std::span<const double> second);

/// Gains below this are not worth another Config: the next measurement may say the opposite.
inline constexpr double kLeastGain = 0.01;

/// The rule by which the incumbent is kept: the first is faster only where its median is more than kLeastGain below,
/// and below by more than the spread of the median, `high - ratio`.
[[nodiscard]] bool is_faster(const Comparison& comparison);
/// Whether more rounds may decide: the median says faster, the spread does not allow it.
[[nodiscard]] bool is_undecided(const Comparison& comparison);

}  // namespace packjit
