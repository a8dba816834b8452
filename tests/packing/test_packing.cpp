#include "packing/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

TEST(NextFit, SealsARowWhenTheNextDocumentDoesNotFit) {
  EXPECT_EQ(text(plan_next_fit(documents({5, 4, 3, 6, 2}), options(10))), "0@0+5 1@0+4 || 2@0+3 3@0+6 || 4@0+2");
}

TEST(NextFit, FillsARowToTheLastToken) {
  EXPECT_EQ(text(plan_next_fit(documents({5, 5, 10, 1}), options(10))), "0@0+5 1@0+5 || 2@0+10 || 3@0+1");
}

TEST(NextFit, PiecesOfALongDocumentGoToSuccessiveCalls) {
  EXPECT_EQ(text(plan_next_fit(documents({25, 3}), options(10))), "0@0+10 || 0@10+10 || 0@20+5 1@0+3");
}

TEST(NextFit, CutsAtTheLastBreakThatFitsAndLetsTheNextDocumentIn) {
  const std::vector<Document> given{{12, {4, 7, 11}}, {3, {}}};
  PackOptions chosen = options(10);
  chosen.cut = 8;
  EXPECT_EQ(text(plan_next_fit(given, chosen)), "0@0+7 1@0+3 || 0@7+5");
}

TEST(NextFit, BreakExactlyAtTheCutIsTaken) {
  EXPECT_EQ(text(plan_next_fit(std::vector<Document>{{15, {10}}}, options(10))), "0@0+10 || 0@10+5");
  EXPECT_EQ(text(plan_next_fit(std::vector<Document>{{15, {11}}}, options(10))), "0@0+10 || 0@10+5");
  EXPECT_EQ(text(plan_next_fit(std::vector<Document>{{15, {1}}}, options(10))), "0@0+1 || 0@1+10 || 0@11+4");
}

TEST(NextFit, RowsOfOneCallHoldNoTwoPiecesOfADocument) {
  PackOptions chosen = options(10);
  chosen.rows_per_call = 2;
  EXPECT_EQ(text(plan_next_fit(documents({20, 10, 10}), chosen)), "0@0+10 | 1@0+10 || 0@10+10 | 2@0+10");
  // Nothing else is there to run beside the pieces, so the calls stay small.
  EXPECT_EQ(text(plan_next_fit(documents({25}), chosen)), "0@0+10 || 0@10+10 || 0@20+5");
}

TEST(NextFit, PiecesOfOneDocumentNeverShareARow) {
  PackOptions chosen = options(10);
  chosen.cut = 2;
  EXPECT_EQ(text(plan_next_fit(documents({5, 5}), chosen)), "0@0+2 1@0+2 || 0@2+2 1@2+2 || 0@4+1 1@4+1");
}

TEST(LocalGreedy, TakesTheFullestRowThatFits) {
  EXPECT_EQ(rows_of(plan_local_greedy(documents({3, 6, 4, 7}), options(10))),
            (std::vector<std::string>{"0@0+3 3@0+7", "1@0+6 2@0+4"}));
  EXPECT_EQ(rows_of(plan_local_greedy(documents({6, 7, 3}), options(10))),
            (std::vector<std::string>{"0@0+6", "1@0+7 2@0+3"}));
}

TEST(LocalGreedy, SortsInsideAWindowOnly) {
  PackOptions chosen = options(10);
  chosen.open_packs = 0;
  chosen.window = 2;
  EXPECT_EQ(rows_of(plan_local_greedy(documents({6, 5, 4, 5}), chosen)),
            (std::vector<std::string>{"0@0+6", "1@0+5", "2@0+4 3@0+5"}));
}

TEST(LocalGreedy, CarriesTheRowsWithTheMostRoomIntoTheNextWindow) {
  PackOptions chosen = options(10);
  chosen.window = 2;
  chosen.open_packs = 2;
  EXPECT_EQ(rows_of(plan_local_greedy(documents({6, 5, 4, 5}), chosen)),
            (std::vector<std::string>{"0@0+6 2@0+4", "1@0+5 3@0+5"}));
  chosen.open_packs = 1;
  EXPECT_EQ(rows_of(plan_local_greedy(documents({6, 5, 4, 5}), chosen)),
            (std::vector<std::string>{"0@0+6", "1@0+5 3@0+5", "2@0+4"}));
}

// A window is less than a row here: rows stay until 10 tokens have come, and 10 more.
TEST(LocalGreedy, CarriesARowOnlyOnce) {
  PackOptions chosen = options(10);
  chosen.window = 1;
  chosen.open_packs = 5;
  EXPECT_EQ(rows_of(plan_local_greedy(documents({9, 9, 9, 9, 1}), chosen)),
            (std::vector<std::string>{"0@0+9", "1@0+9", "2@0+9 4@0+1", "3@0+9"}));
  chosen.window = 2;
  EXPECT_EQ(rows_of(plan_local_greedy(documents({9, 9, 9, 9, 1}), chosen)),
            (std::vector<std::string>{"0@0+9", "1@0+9", "2@0+9 4@0+1", "3@0+9"}));
}

TEST(LocalGreedy, SameSeedSamePlanOtherSeedOtherOrder) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 100; ++i) lengths.push_back(1 + i * 37 % 101);
  PackOptions chosen = options(128);
  const PackPlan first = plan_local_greedy(documents(lengths), chosen);
  EXPECT_EQ(first, plan_local_greedy(documents(lengths), chosen));
  chosen.seed = 1;
  const PackPlan second = plan_local_greedy(documents(lengths), chosen);
  EXPECT_NE(text(first), text(second));
  EXPECT_EQ(rows_of(first), rows_of(second));
}

/// What every plan must keep to, checked token by token and call by call.
void expect_sound(const PackPlan& plan, const std::vector<Document>& given) {
  std::vector<std::int64_t> done(given.size(), 0);
  std::vector<std::int64_t> last_call(given.size(), -1);
  std::int64_t call_number = 0;
  for (const Call& call : plan.calls) {
    ASSERT_FALSE(call.rows.empty());
    ASSERT_LE(static_cast<std::int64_t>(call.rows.size()), plan.options.rows_per_call);
    for (const Row& row : call.rows) {
      ASSERT_FALSE(row.pieces.empty());
      std::int64_t used = 0;
      for (const Piece& piece : row.pieces) {
        const auto d = static_cast<std::size_t>(piece.document);
        ASSERT_LT(d, given.size());
        ASSERT_EQ(piece.offset, done[d]) << "a token is missing, twice there or out of order";
        ASSERT_LT(last_call[d], call_number) << "two pieces of a document in one call";
        ASSERT_GE(piece.length, 1);
        ASSERT_LE(piece.length, plan.options.cut);
        ASSERT_EQ(piece.continues, piece.offset > 0);
        done[d] += piece.length;
        last_call[d] = call_number;
        used += piece.length;
        ASSERT_EQ(piece.more, done[d] < given[d].length);
        const auto& breaks = given[d].breaks;
        const bool breaks_within_reach = std::any_of(breaks.begin(), breaks.end(), [&](std::int64_t point) {
          return point > piece.offset && point <= piece.offset + plan.options.cut;
        });
        if (piece.more && breaks_within_reach) {
          ASSERT_NE(std::find(breaks.begin(), breaks.end(), done[d]), breaks.end()) << "cut beside a break";
        }
      }
      ASSERT_LE(used, plan.options.pack_length);
    }
    ++call_number;
  }
  for (std::size_t d = 0; d < given.size(); ++d) ASSERT_EQ(done[d], given[d].length);
}

TEST(AnyMethod, EveryTokenOnceAndPiecesInLaterCalls) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t bound) { return static_cast<std::int64_t>(random() % bound); };
  for (int round = 0; round < 400; ++round) {
    PackOptions chosen = options(1 + below(64));
    chosen.cut = below(3) == 0 ? 0 : 1 + below(static_cast<std::uint32_t>(chosen.pack_length));
    chosen.rows_per_call = 1 + below(5);
    chosen.window = 1 + below(20);
    chosen.open_packs = below(6);
    chosen.seed = random();
    std::vector<Document> given(static_cast<std::size_t>(1 + below(60)));
    for (Document& document : given) {
      document.length = 1 + below(below(4) == 0 ? 300 : 30);
      for (std::int64_t point = 1 + below(9); point < document.length; point += 1 + below(40)) {
        document.breaks.push_back(point);
      }
    }
    for (const PackMethod& method : pack_methods()) {
      SCOPED_TRACE(std::string(method.name) + ", round " + std::to_string(round));
      const PackPlan plan = method.plan(given, chosen);
      expect_sound(plan, given);
      if (HasFatalFailure()) return;
      EXPECT_EQ(plan, method.plan(given, chosen));
    }
  }
}

TEST(AnyMethod, ManyPiecesOfOneDocument) {
  PackOptions chosen = options(4096);
  chosen.cut = 1;
  const std::vector<Document> given = documents({50000, 7, 50000});
  for (const PackMethod& method : pack_methods()) {
    const PackPlan plan = method.plan(given, chosen);
    expect_sound(plan, given);
    EXPECT_GE(plan.calls.size(), 50000u) << method.name;
  }
  EXPECT_EQ(plan_next_fit(given, chosen).calls.size(), 50000u);
}

std::string refusal(const std::vector<Document>& given, const PackOptions& chosen) {
  for (const PackMethod& method : pack_methods()) {
    try {
      (void)method.plan(given, chosen);
      return "accepted by " + std::string(method.name);
    } catch (const std::invalid_argument& error) {
      if (&method == &pack_methods().back()) return error.what();
    }
  }
  return "";
}

TEST(AnyMethod, RefusesWhatIsOutOfRange) {
  EXPECT_EQ(refusal(documents({1}), options(0)), "packing: pack length must be from 1 to 2147483647, found 0");
  EXPECT_EQ(refusal({}, options(8)), "packing: there are no documents to pack");
  EXPECT_EQ(refusal(documents({3, 0}), options(8)),
            "packing: document 1: length must be from 1 to 2147483647, found 0");
  PackOptions chosen = options(8);
  chosen.cut = 9;
  EXPECT_EQ(refusal(documents({1}), chosen),
            "packing: cut must be from 1 to 8 (the pack length: a piece must fit into a row), found 9");
  chosen = options(10);
  chosen.min_piece = 6;
  EXPECT_EQ(refusal(documents({1}), chosen),
            "packing: minimum piece must be from 1 to 5 (half the cut: a document just above the cut becomes two "
            "pieces), found 6");
  chosen.min_piece = 0;
  EXPECT_EQ(refusal(documents({1}), chosen),
            "packing: minimum piece must be from 1 to 5 (half the cut: a document just above the cut becomes two "
            "pieces), found 0");
  chosen = options(8);
  chosen.cut_slack = -1;
  EXPECT_EQ(refusal(documents({1}), chosen), "packing: cut slack must be from 0 to 2147483647, found -1");
  chosen = options(8);
  chosen.window = 0;
  EXPECT_EQ(refusal(documents({1}), chosen), "packing: window must be from 1 to 2147483647, found 0");
  chosen = options(8);
  chosen.open_packs = -1;
  EXPECT_EQ(refusal(documents({1}), chosen), "packing: open packs must be from 0 to 2147483647, found -1");
  chosen = options(8);
  chosen.rows_per_call = 0;
  EXPECT_EQ(refusal(documents({1}), chosen), "packing: rows per call must be from 1 to 2147483647, found 0");
  EXPECT_EQ(refusal({{5, {3, 3}}}, options(8)),
            "packing: document 0: breaks must increase and lie inside (0, 5), found 3 after 3");
  EXPECT_EQ(refusal(documents({2147483647}), options(1)),
            "packing: the plan would hold more than 67108864 pieces by document 0; raise the cut, or pack fewer "
            "documents at a time");
}

TEST(PackMethods, UnknownNameListsThoseThereAre) {
  EXPECT_EQ(pack_method_named("next-fit").name, "next-fit");
  try {
    (void)pack_method_named("worst-fit");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "packing: there is no method 'worst-fit'; the methods are next-fit, local-greedy, ffd, bfd, "
                 "length-groups, balanced");
  }
}

}  // namespace
}  // namespace packjit
