#include "packing/local_greedy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cli/lengths_file.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

TEST(LocalGreedyStream, CallsLeaveWhenTheNextWindowBegins) {
  PackOptions chosen = options(10);
  chosen.window = 2;
  chosen.open_packs = 0;
  LocalGreedyStream stream(chosen);
  EXPECT_TRUE(stream.add({6, {}}).empty());
  EXPECT_TRUE(stream.add({4, {}}).empty());
  EXPECT_EQ(stream.tokens_held(), 10);
  PackPlan left;
  left.calls = stream.add({9, {}});
  EXPECT_EQ(text(left), "0@0+6 1@0+4");
  EXPECT_EQ(stream.tokens_held(), 9);
  left.calls = stream.finish();
  EXPECT_EQ(text(left), "2@0+9");
  EXPECT_EQ(stream.tokens_held(), 0);
}

TEST(LocalGreedyStream, NoDocumentsNoCalls) { EXPECT_TRUE(LocalGreedyStream(options(10)).finish().empty()); }

TEST(LocalGreedyStream, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(LocalGreedyStream{options(0)}, std::invalid_argument);
  LocalGreedyStream stream(options(8));
  (void)stream.add({1, {}});
  try {
    (void)stream.add({0, {}});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "packing: document 1: length must be from 1 to 2147483647, found 0");
  }
}

// A window of 64 holds at most 64 * 35,363 tokens, 47,000 on average. The stream is 690 windows long.
TEST(LocalGreedyStream, WhatIsHeldDoesNotGrowWithTheStream) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions chosen = options(4096, 4);
  chosen.cut = 2048;
  chosen.window = 64;
  LocalGreedyStream stream(chosen);
  std::int64_t most = 0;
  std::size_t rows = 0;
  for (int round = 0; round < 5; ++round) {
    for (const Document& document : given) {
      for (const Call& call : stream.add(document)) rows += call.rows.size();
      most = std::max(most, stream.tokens_held());
    }
  }
  for (const Call& call : stream.finish()) rows += call.rows.size();
  EXPECT_GE(rows, 5 * 1588u - 4);
  EXPECT_LT(most, std::int64_t{64} * 35363);
  EXPECT_GT(most, 64 * 735);
}

// A window of 256 of these documents holds 188,000 tokens: fewer than a row.
TEST(LocalGreedyStream, RowsLongerThanAWindowAreFilledFromSeveral) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  std::int64_t tokens = 0;
  for (const Document& document : given) tokens += document.length;
  ASSERT_EQ(tokens, 6'503'676);
  for (const std::int64_t pack_length : {std::int64_t{262144}, std::int64_t{1048576}}) {
    const std::int64_t fewest = (tokens + pack_length - 1) / pack_length;  // 25 and 7
    PackOptions chosen = options(pack_length);
    std::int64_t rows = 0;
    std::int64_t most = 0;
    LocalGreedyStream stream(chosen);
    for (const Document& document : given) {
      rows += static_cast<std::int64_t>(stream.add(document).size());
      most = std::max(most, stream.tokens_held());
    }
    rows += static_cast<std::int64_t>(stream.finish().size());
    EXPECT_EQ(rows, fewest) << pack_length;
    EXPECT_LE(most, (chosen.open_packs + 2) * pack_length) << pack_length;
  }
}

TEST(LocalGreedyStream, ARowThatNothingFitsIntoLeavesAfterTheTokensOfTwoRows) {
  PackOptions chosen = options(100);
  chosen.window = 1;
  chosen.open_packs = 4;
  LocalGreedyStream stream(chosen);
  (void)stream.add({40, {}});
  PackPlan left;
  int added = 0;
  while (left.calls.empty() && added < 20) {
    left.calls = stream.add({61, {}});
    ++added;
  }
  // The row of 40 with the first of 61 would be 101. It is old once 100 tokens have come, and leaves with 100 more.
  EXPECT_EQ(added, 4);
  EXPECT_NE(text(left).find("0@0+40"), std::string::npos) << text(left);
}

// The checksum was computed over the plan that the program wrote before there were streams.
TEST(LocalGreedyStream, PlansAreThoseOfEarlierVersions) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions chosen = options(4096, 3);
  chosen.cut = 2048;
  std::uint64_t checksum = 0xcbf29ce484222325u;  // FNV-1a, a number at a time
  const auto add = [&](std::int64_t value) {
    checksum = (checksum ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u;
  };
  for (const Call& call : plan_local_greedy(given, chosen).calls) {
    for (const Row& row : call.rows) {
      for (const Piece& piece : row.pieces) {
        for (const std::int64_t value : {piece.document, piece.offset, piece.length}) add(value);
      }
      add(0xffff);
    }
  }
  EXPECT_EQ(checksum, 0x8b0eac7e288fc557u);
}

}  // namespace
}  // namespace packjit
