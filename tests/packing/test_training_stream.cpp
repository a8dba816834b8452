#include "packing/training_stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "packing/permutation.hpp"
#include "tests/message_of.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

TEST(Permutation, HasEveryPlaceOnceAtAnySize) {
  for (std::uint64_t count = 1; count < 300; ++count) {
    const Permutation permutation(count, 7, 3);
    std::vector<char> seen(count, 0);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t place = permutation(i);
      ASSERT_LT(place, count);
      ASSERT_EQ(seen[place]++, 0) << count;
    }
  }
}

TEST(Permutation, WorksWhereNoListWouldFitIntoMemory) {
  const std::uint64_t count = (std::uint64_t{1} << 40) + 3;
  const Permutation permutation(count, 1, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation(count - 1 - i), count);
  EXPECT_NE(permutation(0), permutation(1));
}

TEST(Permutation, MixesAndDiffersBetweenEpochsAndSeeds) {
  const auto order = arrival_order(1000, 5, 0);
  std::int64_t in_place = 0;
  std::int64_t neighbours = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    in_place += order[i] == static_cast<std::int64_t>(i);
    neighbours += i > 0 && std::abs(order[i] - order[i - 1]) == 1;
  }
  EXPECT_LT(in_place, 10);    // a random permutation leaves 1 on average
  EXPECT_LT(neighbours, 15);  // and has 2 pairs of neighbours
  EXPECT_EQ(order, arrival_order(1000, 5, 0));
  EXPECT_NE(order, arrival_order(1000, 5, 1));
  EXPECT_NE(order, arrival_order(1000, 6, 0));
}

std::vector<Document> some_documents() {
  std::vector<Document> given;
  for (std::int64_t i = 0; i < 50; ++i) given.push_back({1 + i * 37 % 41, {}});
  return given;
}

TEST(TrainingStream, EveryEpochHasEveryDocumentOnceInAnotherOrder) {
  TrainingStream stream(some_documents(), pack_method_named("local-greedy"), options(32));
  std::vector<std::string> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    PackPlan plan;
    std::int64_t tokens = 0;
    do {
      plan.calls.push_back(stream.next());
      for (const Row& row : plan.calls.back().rows) {
        for (const Piece& piece : row.pieces) tokens += piece.length;
      }
    } while (stream.position().step < stream.steps());
    EXPECT_EQ(stream.position().epoch, epoch);
    std::int64_t expected = 0;
    for (const Document& document : some_documents()) expected += document.length;
    EXPECT_EQ(tokens, expected);
    epochs.push_back(text(plan));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(TrainingStream, ResumedItGoesOnAsIfNothingHadHappened) {
  const auto make = [] { return TrainingStream(some_documents(), pack_method_named("bfd"), options(32, 2), 2, 1); };
  TrainingStream stream = make();
  for (int i = 0; i < 17; ++i) (void)stream.next();
  const StreamPosition position = stream.position();
  EXPECT_GT(position.epoch, 0);
  TrainingStream resumed = make();
  resumed.resume(position);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(resumed.next(), stream.next());
  EXPECT_EQ(resumed.position(), stream.position());
}

TEST(TrainingStream, APositionOfSomethingElseIsRefused) {
  TrainingStream stream(some_documents(), pack_method_named("bfd"), options(32));
  StreamPosition position = stream.position();
  for (TrainingStream other : {TrainingStream(some_documents(), pack_method_named("ffd"), options(32)),
                               TrainingStream(some_documents(), pack_method_named("bfd"), options(33)),
                               TrainingStream(some_documents(), pack_method_named("bfd"), options(32), 2, 0),
                               TrainingStream(documents({1, 2}), pack_method_named("bfd"), options(32))}) {
    EXPECT_THROW(other.resume(position), std::invalid_argument);
  }
  const auto of_two = [&](RankDivision division) {
    return TrainingStream(some_documents(), pack_method_named("bfd"), options(32), 2, 0, division);
  };
  EXPECT_THROW(of_two(RankDivision::round_robin).resume(of_two(RankDivision::balanced).position()),
               std::invalid_argument);
  position.step = stream.steps() + 1;
  EXPECT_THROW(stream.resume(position), std::invalid_argument);
  position = {-1, 0, position.fingerprint};
  EXPECT_THROW(stream.resume(position), std::invalid_argument);
  position = {0, -1, position.fingerprint};
  EXPECT_THROW(stream.resume(position), std::invalid_argument);
  EXPECT_THROW(TrainingStream(some_documents(), pack_methods()[0], options(32), 2, 2), std::invalid_argument);
  EXPECT_THROW(TrainingStream(some_documents(), pack_methods()[0], options(32), 0, 0), std::invalid_argument);
}

TEST(TrainingStream, AnEpochThatHasNoNextOneIsRefused) {
  TrainingStream stream(some_documents(), pack_method_named("bfd"), options(32));
  const std::uint64_t fingerprint = stream.position().fingerprint;
  EXPECT_EQ(test::message_of([&] {
              stream.resume({std::numeric_limits<std::int64_t>::max(), 0, fingerprint});
            }),
            "packing: cannot resume: expected an epoch from 0 to 9007199254740992, found 9223372036854775807");
  EXPECT_EQ(stream.position().epoch, 0);
  stream.resume({9007199254740992, stream.steps(), fingerprint});
  (void)stream.next();
  EXPECT_EQ(stream.position().epoch, 9007199254740993);
}

TEST(TrainingStream, ADocumentOutOfRangeIsNamedByItsPlaceInTheListGiven) {
  for (const std::size_t wrong : {0U, 7U, 49U}) {
    std::vector<Document> given = some_documents();
    given[wrong].length = 0;
    EXPECT_EQ(test::message_of([&] { TrainingStream(given, pack_method_named("bfd"), options(32)); }),
              "packing: document " + std::to_string(wrong) + ": length must be from 1 to 2147483647, found 0");
  }
}

}  // namespace
}  // namespace packjit
