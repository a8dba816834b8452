#include "packing/local_greedy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

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
