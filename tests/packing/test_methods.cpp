// The methods that see all documents: small plans worked out by hand.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cli/lengths_file.hpp"
#include "packing/packing.hpp"
#include "packing/room_by_row.hpp"
#include "packing/statistics.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

using Rows = std::vector<std::string>;

// 8 and 6 open a row each, 5 fits only the second, which then has 1 token of room; the first has 4.
TEST(Decreasing, FirstFitTakesTheFirstRowBestFitTheFullest) {
  EXPECT_EQ(rows_of(plan_first_fit_decreasing(documents({8, 6, 5, 1}), options(12))),
            (Rows{"0@0+8 3@0+1", "1@0+6 2@0+5"}));
  EXPECT_EQ(rows_of(plan_best_fit_decreasing(documents({8, 6, 5, 1}), options(12))),
            (Rows{"0@0+8", "1@0+6 2@0+5 3@0+1"}));
}

TEST(Decreasing, PiecesOfACutDocumentComeInOrderAndLeaveRoomForOthers) {
  for (const auto& plan : {plan_first_fit_decreasing(documents({4, 25, 5}), options(10)),
                           plan_best_fit_decreasing(documents({4, 25, 5}), options(10))}) {
    EXPECT_EQ(rows_of(plan), (Rows{"0@0+4", "1@0+10", "1@10+10", "1@20+5 2@0+5"}));
  }
}

TEST(Decreasing, TheSeedDecidesTheOrderOfRowsOnly) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 100; ++i) lengths.push_back(1 + i * 37 % 101);
  PackOptions chosen = options(128);
  for (const std::string_view name : {"ffd", "bfd", "length-groups", "balanced"}) {
    const PackMethod& method = pack_method_named(name);
    chosen.seed = 0;
    const PackPlan first = method.plan(documents(lengths), chosen);
    chosen.seed = 1;
    const PackPlan second = method.plan(documents(lengths), chosen);
    EXPECT_NE(text(first), text(second)) << name;
    EXPECT_EQ(rows_of(first), rows_of(second)) << name;
  }
}

// Above 1 up to 2, above 2 up to 4, above 8 up to 16.
TEST(LengthGroups, OnlySimilarLengthsShareARow) {
  EXPECT_EQ(rows_of(plan_length_groups(documents({3, 9, 4, 12, 10, 2, 16}), options(16))),
            (Rows{"0@0+3 2@0+4", "1@0+9", "3@0+12", "4@0+10", "5@0+2", "6@0+16"}));
}

TEST(LengthGroups, CutDocumentsAreInTheGroupOfTheCut) {
  EXPECT_EQ(rows_of(plan_length_groups(documents({10, 3, 7}), options(8))), (Rows{"0@0+8", "0@8+2", "1@0+3", "2@0+7"}));
}

TEST(LengthGroups, ACallHoldsOneGroup) {
  const PackPlan plan = plan_length_groups(documents({3, 9, 3, 9, 3, 9}), options(9, 3));
  ASSERT_EQ(plan.calls.size(), 2u);
  EXPECT_EQ(rows_of(plan), (Rows{"0@0+3 2@0+3 4@0+3", "1@0+9", "3@0+9", "5@0+9"}));
  EXPECT_EQ(plan.calls[0].rows.size() + plan.calls[1].rows.size(), 4u);
  EXPECT_TRUE(plan.calls[0].rows.size() == 1 || plan.calls[0].rows.size() == 3);
}

// 18 tokens: one call of two rows. 6 and 5 come first, 4 to the emptier row, 3 to the other: 9 tokens each.
TEST(Balanced, RowsOfACallHaveEqualTokens) {
  EXPECT_EQ(text(plan_balanced(documents({6, 5, 4, 3}), options(10, 2))), "0@0+6 3@0+3 | 1@0+5 2@0+4");
}

TEST(Balanced, PiecesOfACutDocumentGoToSuccessiveCalls) {
  EXPECT_EQ(text(plan_balanced(documents({20, 5}), options(10, 2))), "0@0+10 | 1@0+5 || 0@10+10");
}

// 21 tokens fit three rows of 7 only by number; 4 and 4 do not fit together, so a further row is opened for the last.
TEST(Balanced, OpensAnotherCallForWhatDoesNotFit) {
  EXPECT_EQ(rows_of(plan_balanced(documents({4, 4, 4, 4, 5}), options(7))),
            (Rows{"0@0+4", "1@0+4", "2@0+4", "3@0+4", "4@0+5"}));
}

TEST(Balanced, HugeCallsAreRefusedBeforeMemoryIsTaken) {
  PackOptions chosen = options(2, 2147483647);
  chosen.cut = 1;
  std::vector<Document> given(20000, {1, {}});
  given.front().length = 2000;  // a call for each of its tokens, and 20,000 rows in a call
  try {
    (void)plan_balanced(given, chosen);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "packing: balanced would need more than 16777216 rows in calls of 20000; lower the rows per call, or "
                 "pack fewer documents at a time");
  }
}

// Published for packing in windows and for the order of arrival, on other lengths: 0.41 % and 19.1 % of padding.
TEST(LocalGreedy, LeavesAtMostHalfAPercentOfPaddingOnRealLengths) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions chosen = options(4096);
  chosen.cut = 2048;
  chosen.window = 1000;
  EXPECT_GE(statistics_of(plan_local_greedy(given, chosen), given).fill_rate, 0.995);
  EXPECT_LT(statistics_of(plan_next_fit(given, chosen), given).fill_rate, 0.95);
}

// No plan has fewer than 1,588 rows for 6,503,676 tokens.
TEST(AllDocuments, RealLengthsAreFull) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  for (const auto& [method, most] :
       {std::pair(std::string("ffd"), 1590), {"bfd", 1590}, {"length-groups", 1600}, {"balanced", 1600}}) {
    PackOptions chosen = options(4096, 4);
    chosen.cut = 2048;
    const PackStatistics found = statistics_of(pack_method_named(method).plan(given, chosen), given);
    EXPECT_EQ(found.tokens, 6503676) << method;
    EXPECT_GE(found.rows, 1588) << method;
    EXPECT_LE(found.rows, most) << method;
    EXPECT_LE(found.calls, most / 4 + 5) << method;
    if (method == "balanced") {
      EXPECT_LT(found.mean_handover_distance, 2);
    }
  }
}

TEST(RoomByRow, FindsTheFirstOfTheRoomiestRows) {
  RoomByRow room(5);
  for (const auto& [row, free] : {std::pair(5, 3), {6, 7}, {7, 7}, {8, 1}}) room.set(row, free);
  EXPECT_EQ(room.roomiest(), 6);
  room.set(6, 2);
  EXPECT_EQ(room.roomiest(), 7);
}

}  // namespace
}  // namespace packjit
