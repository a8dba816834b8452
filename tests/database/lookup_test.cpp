#include "database/lookup.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/database/database_helpers.hpp"

namespace packjit::test {
namespace {

const Spec kConv(Operator::conv1d_pack_fwd);

/// A database with entries at these tokens, told apart by their tile_tokens.
Database database_of(std::string origin, std::initializer_list<std::pair<std::int64_t, int>> tiles_by_tokens) {
  Database database;
  database.origin = std::move(origin);
  for (const auto& [tokens, tile] : tiles_by_tokens) {
    Entry entry = test_entry(tokens);
    entry.config.values.set("tile_tokens", tile);
    add(database, entry);
  }
  return database;
}

Database on_other_gpu(Database database) {
  GpuProperties other = test_gpu();
  other.name = "Smaller GPU";
  other.multiprocessors = 114;
  database.gpu = other;
  for (Entry& entry : database.entries) entry.gpu = other;
  return database;
}

Choice choose(std::vector<const Database*> databases, std::int64_t tokens, const GpuProperties& gpu = test_gpu()) {
  return look_up(databases, kConv, gpu, {tokens, 8, 1536, 512});
}

TEST(Lookup, TakesTheExactEntryOfTheUserFirst) {
  const Database user = database_of("the user's database", {{4096, 24}});
  const Database shipped = database_of("the shipped database", {{4096, 40}, {6144, 56}});
  const Choice exact = choose({&user, &shipped}, 4096);
  EXPECT_EQ(exact.outcome, Outcome::exact);
  EXPECT_EQ(exact.config.values["tile_tokens"], 24);
  EXPECT_EQ(exact.origin, "the user's database, Test GPU entry of 2026-03-14 (dim 1536, tokens 4096)");
  EXPECT_TRUE(exact.rejected.empty());
  // Exact where it was shipped comes before what is near in the user's own.
  const Choice other = choose({&user, &shipped}, 6000);
  EXPECT_EQ(other.outcome, Outcome::exact);
  EXPECT_EQ(other.config.values["tile_tokens"], 56);
}

TEST(Lookup, TakesTheNearestShapeAndTheSameOfTwo) {
  const Database user = database_of("user", {{2048, 24}, {4096, 40}, {8192, 48}});
  const Choice near = choose({&user}, 6000);
  EXPECT_EQ(near.outcome, Outcome::nearest_shape);
  EXPECT_EQ(near.config.values["tile_tokens"], 48);  // 6,144 to 8,192 is less of a step than from 4,096
  ASSERT_EQ(near.rejected.size(), 1U);
  EXPECT_EQ(near.rejected[0].outcome, Outcome::exact);
  EXPECT_EQ(near.rejected[0].reason, "nothing was tuned on this GPU model for this Spec and bucket");
  const Database ends = database_of("user", {{1024, 24}, {4096, 40}});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(choose({&ends}, 2048).config.values["tile_tokens"], 24);
}

TEST(Lookup, WhatWasTunedWithoutFp32WeightsServesThemToo) {
  Spec fp32 = kConv;
  fp32.values.set("fp32_weights", 1);
  Database user = database_of("user", {{2048, 24}, {4096, 40}});
  const std::vector<const Database*> databases = {&user};
  const Choice borrowed = look_up(databases, fp32, test_gpu(), {4096, 8, 1536, 512});
  EXPECT_EQ(borrowed.outcome, Outcome::exact);
  EXPECT_EQ(borrowed.config.values["tile_tokens"], 40);
  EXPECT_EQ(borrowed.origin, "user, Test GPU entry of 2026-03-14 (dim 1536, tokens 4096, tuned without fp32_weights)");
  // An entry of its own comes first, and serves nobody else.
  Entry own = test_entry(4096);
  own.spec = fp32;
  own.config.values.set("tile_tokens", 56);
  add(user, own);
  const Choice exact = look_up(databases, fp32, test_gpu(), {4096, 8, 1536, 512});
  EXPECT_EQ(exact.config.values["tile_tokens"], 56);
  EXPECT_EQ(exact.origin, "user, Test GPU entry of 2026-03-14 (dim 1536, tokens 4096)");
  EXPECT_EQ(choose({&user}, 4096).config.values["tile_tokens"], 40);
}

TEST(Lookup, K48_FarFromWhatWasTunedTheDefaultIsUsed) {
  const Database user = database_of("user", {{1024, 24}, {2048, 40}});
  EXPECT_EQ(choose({&user}, 4096).outcome, Outcome::nearest_shape);
  for (const std::int64_t tokens : {6144, 32'768, 1'000'000}) {
    const Choice far = choose({&user}, tokens);
    EXPECT_EQ(far.outcome, Outcome::built_in) << tokens;
    EXPECT_EQ(far.origin, "built-in Config for sm_90");
    ASSERT_EQ(far.rejected.size(), 3U);
    EXPECT_EQ(far.rejected[1].reason, "nothing was tuned on this GPU model for this Spec at a shape within its range");
  }
  EXPECT_EQ(look_up(std::vector<const Database*>{&user}, kConv, test_gpu(), {2048, 8, 8192, 512}).outcome,
            Outcome::built_in);
}

TEST(Lookup, TakesAnotherGpuOfTheArchitectureLast) {
  const Database other = on_other_gpu(database_of("shipped", {{4096, 24}, {6144, 56}}));
  const Choice exact = choose({&other}, 4096);
  EXPECT_EQ(exact.outcome, Outcome::same_architecture);
  EXPECT_EQ(exact.config.values["tile_tokens"], 24);
  EXPECT_EQ(exact.origin, "shipped, Smaller GPU entry of 2026-03-14 (dim 1536, tokens 4096)");
  EXPECT_EQ(choose({&other}, 8192).config.values["tile_tokens"], 56);
  const Database own = database_of("user", {{8192, 48}});
  EXPECT_EQ(choose({&other, &own}, 4096).outcome, Outcome::nearest_shape);
  GpuProperties older = test_gpu();
  older.arch = "sm_80";
  EXPECT_EQ(choose({&other, &own}, 4096, older).outcome, Outcome::built_in);
}

TEST(Lookup, AnotherSpecFindsNothing) {
  const Database user = database_of("user", {{4096, 24}});
  Spec spec = kConv;
  spec.values.set_text("dtype", "fp16");
  EXPECT_EQ(look_up(std::vector<const Database*>{&user}, spec, test_gpu(), {4096, 8, 1536, 512}).outcome,
            Outcome::built_in);
}

/// A scan's entry whose kernel needs much shared memory.
Entry large_entry() {
  const Operator op = Operator::ssm_pack_fwd;
  Entry entry = test_entry();
  entry.spec = Spec(op);
  entry.config = builtin_config(entry.spec, "sm_90");
  entry.config.values.set("tile_tokens", 64);
  entry.measured = {32'768, 54, 4096, 2048};
  entry.bucket = bucket_of(op, entry.measured);
  return entry;
}

TEST(Lookup, K47_AConfigThatNeedsMoreSharedMemoryIsPassedOver) {
  Database larger, own;
  add(larger, large_entry());
  larger.origin = "shipped";
  const Workload work{32'768, 54, 4096, 2048};
  const Spec spec(Operator::ssm_pack_fwd);
  const std::vector<const Database*> databases = {&larger};
  ASSERT_EQ(look_up(databases, spec, test_gpu(), work).outcome, Outcome::exact);
  GpuProperties smaller = test_gpu();
  smaller.multiprocessors = 60;
  smaller.shared_bytes_per_block = 65'536;
  const Choice choice = look_up(databases, spec, smaller, work);
  EXPECT_EQ(choice.outcome, Outcome::built_in);
  EXPECT_EQ(why_not(spec, choice.config, smaller), "");
  ASSERT_EQ(choice.rejected.size(), 3U);
  EXPECT_EQ(choice.rejected[2].outcome, Outcome::same_architecture);
  EXPECT_EQ(choice.rejected[2].origin,
            "shipped, Test GPU entry of 2026-03-14 (dim 4096, tokens 32768, spread 16, mean length 512)");
  EXPECT_NE(choice.rejected[2].reason.find("bytes of shared memory a block, the GPU has 65536"), std::string::npos)
      << choice.rejected[2].reason;
}

TEST(Lookup, K47_TheDefaultIsMadeSmallerWhereItDoesNotFit) {
  for (const Operator op : kOperators) {
    // Less than any GPU has.
    GpuProperties tiny = test_gpu();
    tiny.shared_bytes_per_block = 24'576;
    const Choice choice = built_in_choice(Spec(op), tiny, {});
    EXPECT_EQ(why_not(Spec(op), choice.config, tiny), "") << name_of(op);
    if (why_not(Spec(op), builtin_config(Spec(op), "sm_90"), tiny).empty()) {
      EXPECT_TRUE(choice.rejected.empty());
    } else {
      ASSERT_FALSE(choice.rejected.empty()) << name_of(op);
      EXPECT_NE(choice.rejected[0].reason.find("the GPU has 24576"), std::string::npos);
    }
  }
}

TEST(Lookup, K47_InstructionsThatTheArchitectureLacks) {
  GpuProperties old = test_gpu();
  old.arch = "sm_75";
  const Config config = builtin_config(Spec(Operator::ssm_pack_fwd), "sm_90");
  EXPECT_NE(why_not(Spec(Operator::ssm_pack_fwd), config, old).find("which came with sm_80"), std::string::npos);
}

// K40: what a kernel does not read must not choose another.
TEST(Lookup, K40_RandomTotalsFindABoundedSetOfConfigs) {
  std::mt19937 random(3);
  const Database none;
  const std::vector<const Database*> databases = {&none};
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    std::set<std::string> configs;
    std::map<Bucket, std::string> by_bucket;
    for (int i = 0; i < 1000; ++i) {
      const std::int64_t tokens = 1 + static_cast<std::int64_t>(random() % 40'000);
      const Workload work{tokens, 1 + static_cast<std::int64_t>(random() % 64), 1536, 1 + tokens / 2};
      const std::string text = look_up(databases, Spec(op), test_gpu(), work).config.values.text();
      configs.insert(text);
      const auto [known, is_new] = by_bucket.emplace(bucket_of(op, work), text);
      EXPECT_EQ(known->second, text) << tokens;
    }
    EXPECT_LE(configs.size(), 17U);
    EXPECT_GE(configs.size(), 2U);  // they do follow the amount of work
    EXPECT_GE(by_bucket.size(), 10U);
  }
  // A scan's has few values of its own.
  std::set<std::string> configs;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t tokens = 1 + static_cast<std::int64_t>(random() % 40'000);
    const Workload work{tokens, 1 + static_cast<std::int64_t>(random() % 64), 1536,
                        1 + static_cast<std::int64_t>(random()) % tokens};
    configs.insert(look_up(databases, Spec(Operator::ssm_pack_fwd), test_gpu(), work).config.values.text());
  }
  EXPECT_LE(configs.size(), 4U);
}

}  // namespace
}  // namespace packjit::test
