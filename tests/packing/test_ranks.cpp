#include "packing/ranks.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "cli/lengths_file.hpp"
#include "packing/statistics.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

// Dealt longest first to the rank with the fewest tokens: 6 | 5, then 4 to the second, 3 to the first.
TEST(Ranks, DocumentsGoToTheRankWithTheFewestTokens) {
  const auto plans = plan_ranks(pack_method_named("next-fit"), documents({3, 4, 5, 6}), options(10), 2);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(text(plans[0]), "0@0+3 3@0+6");
  EXPECT_EQ(text(plans[1]), "1@0+4 2@0+5");
  EXPECT_EQ(plans[0].tokens, 9);
  EXPECT_EQ(plans[0].documents, 4);
  EXPECT_EQ(text(joined(plans)), "0@0+3 3@0+6 | 1@0+4 2@0+5");
  EXPECT_EQ(joined(plans).tokens, 18);
}

TEST(Ranks, ACutDocumentStaysOnItsRankInSuccessiveCalls) {
  const auto plans = plan_ranks(pack_method_named("next-fit"), documents({25, 8, 8, 8}), options(10), 2);
  EXPECT_EQ(text(plans[0]), "0@0+10 || 0@10+10 || 0@20+5");
  EXPECT_EQ(text(plans[1]), "1@0+8 || 2@0+8 || 3@0+8");
}

// Rank 1 has its long document second; the steps bring the long ones together.
TEST(Ranks, LongestSequencesMeetInOneStep) {
  const auto plans = plan_ranks(pack_method_named("next-fit"), documents({10, 5, 6, 10}), options(10), 2);
  EXPECT_EQ(text(plans[0]), "0@0+10 || 2@0+6");
  EXPECT_EQ(text(plans[1]), "3@0+10 || 1@0+5");
}

TEST(Ranks, ARankWithoutDocumentsHasCallsWithoutRows) {
  const auto plans = plan_ranks(pack_method_named("local-greedy"), documents({10, 7}), options(10), 3);
  ASSERT_EQ(plans[2].calls.size(), 1u);
  EXPECT_TRUE(plans[2].calls[0].rows.empty());
  const RankBalance balance = balance_of(plans);
  EXPECT_EQ(balance.calls_without_rows, 1);
  EXPECT_EQ(balance.slots, 30);
  EXPECT_EQ(balance.most_tokens, 10);
  EXPECT_EQ(balance.fewest_tokens, 0);
  EXPECT_DOUBLE_EQ(balance.mean_token_spread, 1.0);
}

TEST(Ranks, RealLengthsAreBalanced) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions chosen = options(4096, 2);
  chosen.cut = 2048;
  for (const PackMethod& method : pack_methods()) {
    const auto plans = plan_ranks(method, given, chosen, 8);
    const RankBalance balance = balance_of(plans);
    EXPECT_LT(balance.most_tokens - balance.fewest_tokens, 2048) << method.name;  // of about 813,000 each
    const std::int64_t needed = 6503676 / (8 * 2 * 4096) + 1;                     // 100 steps
    EXPECT_GE(balance.steps, needed) << method.name;
    // The rest of a long document needs steps of its own at the end, by every method but the balanced.
    if (method.name == "local-greedy") {
      EXPECT_LE(balance.steps, needed + 6);
    }
    if (method.name == "balanced") {
      EXPECT_LE(balance.steps, needed + 1);
      EXPECT_LT(balance.mean_token_spread, 0.02);
      EXPECT_LT(balance.mean_longest_spread, 0.05);
    }
    EXPECT_EQ(statistics_of(joined(plans), given).tokens, 6503676) << method.name;
  }
}

TEST(Ranks, InTurnDocumentsGoAsTheyArriveAndCallsStayInOrder) {
  const auto plans = plan_ranks(pack_method_named("next-fit"), documents({10, 5, 6, 10, 7}), options(10), 2,
                                RankDivision::round_robin);
  EXPECT_EQ(text(plans[0]), "0@0+10 || 2@0+6 || 4@0+7");
  EXPECT_EQ(text(plans[1]), "1@0+5 || 3@0+10 || ");
  EXPECT_EQ(balance_of(plans).calls_without_rows, 1);
}

// The gain of balancing, on lengths of which 8 ranks have 813,000 tokens each.
TEST(Ranks, DividedInTurnRealLengthsAreFarFromBalanced) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions chosen = options(4096, 2);
  chosen.cut = 2048;
  for (const char* method : {"local-greedy", "balanced"}) {
    const auto balance_by = [&](RankDivision division) {
      return balance_of(plan_ranks(pack_method_named(method), given, chosen, 8, division));
    };
    const RankBalance balanced = balance_by(RankDivision::balanced), naive = balance_by(RankDivision::round_robin);
    EXPECT_GT(naive.most_tokens - naive.fewest_tokens, 50000) << method;
    EXPECT_LT(balanced.most_tokens - balanced.fewest_tokens, 2048) << method;
    EXPECT_LT(balanced.steps, naive.steps) << method;
    EXPECT_LT(balanced.mean_token_spread, naive.mean_token_spread) << method;
    EXPECT_LT(balanced.mean_longest_spread, naive.mean_longest_spread) << method;
  }
}

TEST(Ranks, DivisionsHaveNames) {
  for (const NamedRankDivision& named : rank_divisions()) EXPECT_EQ(rank_division_named(named.name), named.division);
  try {
    (void)rank_division_named("fair");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "packing: there is no division 'fair'; the divisions are balanced, round-robin");
  }
}

// (2^31 - 1)^2 slots a call: twice that is just below 2^63, three times beyond.
TEST(Ranks, SlotsBeyond64BitsAreRefused) {
  const auto plans = [](std::int64_t ranks) {
    return plan_ranks(pack_method_named("next-fit"), documents({1, 1, 1}), options(kMaximumLength, kMaximumLength),
                      ranks);
  };
  EXPECT_EQ(balance_of(plans(2)).slots, 9223372028264841218);
  try {
    (void)balance_of(plans(3));
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "packing: 3 ranks with 1 calls of 2147483647 rows of 2147483647 tokens each have more token slots "
                 "than 64 bits count; lower the rows per call or the pack length");
  }
}

TEST(Ranks, RefusesANumberOutOfRange) {
  for (const std::int64_t ranks : {0, -1, 65537}) {
    EXPECT_THROW((void)plan_ranks(pack_methods()[0], documents({1}), options(4), ranks), std::invalid_argument);
  }
  EXPECT_THROW((void)plan_ranks(pack_methods()[0], {}, options(4), 2), std::invalid_argument);
}

}  // namespace
}  // namespace packjit
