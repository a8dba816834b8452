// What holds for every plan, on 10,000 drawn cases and on the extreme ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "packing/local_greedy.hpp"
#include "packing/ranks.hpp"
#include "packing/training_stream.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

/// How far each document has come; goes over the calls of one rank, or of all, in order.
class Ledger {
 public:
  Ledger(const std::vector<Document>& given, const PackOptions& options)
      : given_(given), options_(options), done_(given.size(), 0), last_call_(given.size(), -1) {}

  void take(const Call& call) {
    ASSERT_LE(static_cast<std::int64_t>(call.rows.size()), options_.rows_per_call);
    for (const Row& row : call.rows) {
      ASSERT_FALSE(row.pieces.empty());
      std::int64_t used = 0;
      for (const Piece& piece : row.pieces) {
        take(piece);
        if (testing::Test::HasFatalFailure()) return;
        used += piece.length;
      }
      ASSERT_LE(used, options_.pack_length);
    }
    ++calls_;
  }

  void expect_each_document_whole() const {
    for (std::size_t d = 0; d < given_.size(); ++d) ASSERT_EQ(done_[d], given_[d].length) << "document " << d;
  }
  [[nodiscard]] bool is_touched(std::size_t document) const { return done_[document] > 0; }

 private:
  void take(const Piece& piece) {
    const auto d = static_cast<std::size_t>(piece.document);
    ASSERT_LT(d, given_.size());
    const Document& document = given_[d];
    ASSERT_EQ(piece.offset, done_[d]) << "a token is missing, twice there or out of order";
    ASSERT_LT(last_call_[d], calls_) << "two pieces of a document in one call";
    ASSERT_GE(piece.length, 1);
    ASSERT_LE(piece.length, options_.cut);
    ASSERT_EQ(piece.continues, piece.offset > 0);
    done_[d] += piece.length;
    last_call_[d] = calls_;
    ASSERT_EQ(piece.more, done_[d] < document.length);
    if (piece.more || piece.continues) {
      ASSERT_GE(piece.length, options_.min_piece);
    }
    // A cut beside every break is as late as it may be.
    if (piece.more && !std::binary_search(document.breaks.begin(), document.breaks.end(), done_[d])) {
      ASSERT_TRUE(piece.length == options_.cut || document.length - done_[d] == options_.min_piece);
    }
  }

  const std::vector<Document>& given_;
  PackOptions options_;
  std::vector<std::int64_t> done_;
  std::vector<std::int64_t> last_call_;
  std::int64_t calls_ = 0;
};

void expect_sound(const PackPlan& plan, const std::vector<Document>& given) {
  Ledger ledger(given, plan.options);
  for (const Call& call : plan.calls) {
    ASSERT_FALSE(call.rows.empty());
    ledger.take(call);
    if (testing::Test::HasFatalFailure()) return;
  }
  ledger.expect_each_document_whole();
}

/// Every document whole on one rank, none on two; equal numbers of calls.
void expect_ranks_sound(const std::vector<PackPlan>& plans, const std::vector<Document>& given) {
  std::vector<int> ranks_of(given.size(), 0);
  std::int64_t tokens = 0;
  for (const PackPlan& plan : plans) {
    ASSERT_EQ(plan.calls.size(), plans.front().calls.size());
    Ledger ledger(given, plan.options);
    for (const Call& call : plan.calls) {
      ledger.take(call);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (std::size_t d = 0; d < given.size(); ++d) ranks_of[d] += ledger.is_touched(d);
    tokens += plan.tokens;
  }
  for (std::size_t d = 0; d < given.size(); ++d) ASSERT_EQ(ranks_of[d], 1) << "document " << d;
  PackPlan one = joined(plans);
  ASSERT_EQ(one.tokens, tokens);
  Ledger all(given, one.options);
  for (const Call& call : one.calls) all.take(call);
  all.expect_each_document_whole();
}

/// Two epochs of a rank; a second stream begins at the position that the first one has after `steps` calls.
void expect_resumable(const std::vector<Document>& given, const PackMethod& method, const PackOptions& options,
                      std::int64_t ranks, std::int64_t rank, std::int64_t steps) {
  TrainingStream whole(given, method, options, ranks, rank);
  for (std::int64_t i = 0; i < steps; ++i) (void)whole.next();
  TrainingStream resumed(given, method, options, ranks, rank);
  resumed.resume(whole.position());
  for (int i = 0; i < 8; ++i) ASSERT_EQ(resumed.next(), whole.next());
}

class Cases {
 public:
  explicit Cases(std::uint32_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint32_t>(bound));
  }

  PackOptions options() {
    PackOptions drawn;
    drawn.pack_length = 1 + below(64);
    drawn.cut = below(3) == 0 ? drawn.pack_length : 1 + below(drawn.pack_length);
    drawn.min_piece = below(2) == 0 ? 1 : 1 + below((drawn.cut + 1) / 2);
    drawn.cut_slack = below(2) == 0 ? kMaximumLength : below(30);
    drawn.rows_per_call = 1 + below(5);
    drawn.window = 1 + below(20);
    drawn.open_packs = below(6);
    drawn.seed = random_();
    return drawn;
  }

  std::vector<Document> documents() {
    std::vector<Document> drawn(static_cast<std::size_t>(1 + below(40)));
    for (Document& document : drawn) {
      document.length = 1 + below(below(4) == 0 ? 200 : 30);
      if (below(2) == 0) continue;
      for (std::int64_t point = 1 + below(9); point < document.length; point += 1 + below(40)) {
        document.breaks.push_back(point);
      }
    }
    return drawn;
  }

 private:
  std::mt19937 random_;
};

void expect_everything(const std::vector<Document>& given, const PackOptions& chosen, std::int64_t ranks,
                       std::int64_t steps) {
  for (const PackMethod& method : pack_methods()) {
    SCOPED_TRACE(std::string(method.name));
    const PackPlan plan = method.plan(given, chosen);
    expect_sound(plan, given);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_EQ(plan, method.plan(given, chosen));
    ASSERT_EQ(plan, plan_ranks(method, given, chosen, 1).front());
    expect_ranks_sound(plan_ranks(method, given, chosen, ranks), given);
    if (testing::Test::HasFatalFailure()) return;
    expect_resumable(given, method, chosen, ranks, steps % ranks, steps);
    if (testing::Test::HasFatalFailure()) return;
  }
  expect_ranks_sound(plan_ranks(pack_method_named("balanced"), given, chosen, ranks, RankDivision::round_robin), given);
  LocalGreedyStream stream(chosen);
  std::vector<Call> calls;
  for (const Document& document : given) {
    for (Call& call : stream.add(document)) calls.push_back(std::move(call));
  }
  for (Call& call : stream.finish()) calls.push_back(std::move(call));
  ASSERT_EQ(calls, plan_local_greedy(given, chosen).calls);
}

#if defined(PACKJIT_SANITIZE)
constexpr int kCasesOfATest = 250;  // about ten times as slow
#else
constexpr int kCasesOfATest = 2500;
#endif

/// Four tests rather than one, so that they run side by side.
class DrawnCases : public testing::TestWithParam<std::uint32_t> {};

TEST_P(DrawnCases, TokensLimitsDeterminismRanksAndResuming) {
  Cases cases(GetParam());
  for (int number = 0; number < kCasesOfATest; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    const PackOptions chosen = cases.options();
    const std::vector<Document> given = cases.documents();
    expect_everything(given, chosen, 1 + cases.below(5), cases.below(30));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(TenThousand, DrawnCases, testing::Values(1u, 2u, 3u, 4u));

TEST(EdgeCases, OneDocument) {
  for (const std::int64_t length : {1, 9, 10, 11, 95}) expect_everything(documents({length}), options(10, 3), 4, 2);
}

TEST(EdgeCases, AllLongerThanTheLimit) {
  expect_everything(documents({11, 12, 13, 14, 15, 50, 51, 52}), options(10, 2), 3, 5);
  expect_everything(documents({2, 2, 2, 3}), options(1, 2), 2, 3);
}

TEST(EdgeCases, AllOfLengthOne) {
  const std::vector<Document> given(1000, {1, {}});
  expect_everything(given, options(10, 4), 8, 2);
  for (const PackMethod& method : pack_methods()) {
    std::size_t rows = 0;
    for (const Call& call : method.plan(given, options(10, 4)).calls) rows += call.rows.size();
    EXPECT_EQ(rows, 100u) << method.name;
  }
}

TEST(EdgeCases, AllAsLongAsARow) { expect_everything(std::vector<Document>(30, {10, {}}), options(10, 4), 3, 1); }

}  // namespace
}  // namespace packjit
