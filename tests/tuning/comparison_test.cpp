#include "tuning/comparison.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/message_of.hpp"

namespace packjit {
namespace {

TEST(Comparison, TakesTheMedianOfRatiosRoundByRound) {
  // The second round was twice as slow for both.
  const std::vector<double> first = {1, 4, 3}, second = {2, 8, 4};
  const Comparison comparison = compare(first, second);
  EXPECT_DOUBLE_EQ(comparison.ratio, 0.5);
  EXPECT_EQ(comparison.rounds, 3);
  EXPECT_TRUE(std::isinf(comparison.high));
  EXPECT_FALSE(is_faster(comparison)) << "three rounds say nothing";
  EXPECT_TRUE(is_undecided(comparison));
  EXPECT_DOUBLE_EQ(compare(std::vector<double>{1, 3}, std::vector<double>{1, 1}).ratio, 2);
}

TEST(Comparison, LeavesOutOrderStatistics) {
  // With 21 rounds at most 4 are beyond each limit: 5 would be 1.3 % on each side.
  std::vector<double> first, second(21, 1.0);
  for (int i = 1; i <= 21; ++i) first.push_back(i);
  const Comparison of21 = compare(first, second);
  EXPECT_DOUBLE_EQ(of21.low, 5);
  EXPECT_DOUBLE_EQ(of21.ratio, 11);
  EXPECT_DOUBLE_EQ(of21.high, 17);
  // 8 rounds: none can be left out; 7 are too few.
  EXPECT_DOUBLE_EQ(compare(std::span(first).first(8), second).high, 8);
  EXPECT_TRUE(std::isinf(compare(std::span(first).first(7), second).high));
  EXPECT_DOUBLE_EQ(compare(std::span(first).first(15), second).high, 13);
}

TEST(Comparison, AGainMustBeOneOfOnePercentAndBeyondTheSpread) {
  const std::vector<double> ones(21, 1.0);
  EXPECT_TRUE(is_faster(compare(std::vector<double>(21, 0.98), ones)));
  EXPECT_FALSE(is_faster(compare(std::vector<double>(21, 0.995), ones)));
  std::vector<double> spread(21, 0.9);
  for (std::size_t i = 0; i < 5; ++i) spread[i] = 1.1;
  EXPECT_FALSE(is_faster(compare(spread, ones)));
  EXPECT_TRUE(is_undecided(compare(spread, ones)));
  spread[0] = 0.9;
  EXPECT_TRUE(is_faster(compare(spread, ones)));
}

TEST(Comparison, RefusesTimesWithoutACommonRound) {
  EXPECT_EQ(test::message_of([] { (void)compare({}, std::vector<double>{1}); }),
            "comparing two times: there is no round in which both were measured");
}

}  // namespace
}  // namespace packjit
