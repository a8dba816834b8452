#include "generator/search_space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "database/builtin_config.hpp"
#include "generator/generate.hpp"
#include "runtime/source_digest.hpp"
#include "tuning/candidates.hpp"

namespace packjit {
namespace {

const DeviceLimits kH200{"sm_90", 227 * 1024};

std::set<int> values_of(const std::vector<Config>& space, std::string_view field) {
  std::set<int> values;
  for (const Config& config : space) values.insert(config.values[field]);
  return values;
}

TEST(SearchSpace, HasEveryStrategyOfTheScansOnAnH200) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    const std::vector<Config> space = search_space(Spec(op), kH200);
    EXPECT_GE(space.size(), 100U);
    EXPECT_LE(space.size(), 4000U);
    EXPECT_EQ(values_of(space, "lanes"), (std::set<int>{1, 2, 4, 8}));
    EXPECT_EQ(values_of(space, "block"), (std::set<int>{64, 128, 256}));
    EXPECT_EQ(values_of(space, "segments"), (std::set<int>{0, 1}));
    EXPECT_EQ(values_of(space, "copies"), (std::set<int>{0, 1}));
    EXPECT_GE(values_of(space, "min_blocks").size(), 4U);
    for (const Config& config : space) EXPECT_EQ(refusal(Spec(op), config, kH200), std::nullopt);
  }
  const std::vector<Config> backward = search_space(Spec(Operator::ssm_pack_bwd), kH200);
  EXPECT_EQ(values_of(backward, "channel_sums"), (std::set<int>{0, 1, 2}));
  EXPECT_EQ(values_of(backward, "tile_tokens"), (std::set<int>{8, 16}));
  EXPECT_EQ(values_of(backward, "checkpoint_tokens"), (std::set<int>{8, 16}));
  EXPECT_EQ(values_of(backward, "step_tokens"), (std::set<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(values_of(search_space(Spec(Operator::ssm_pack_fwd), kH200), "tile_tokens"), (std::set<int>{16, 32}));
}

TEST(SearchSpace, HasTheBuiltInConfigsOfTheScansOnAnH200) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    for (const char* checkpoints : {"off", "on"}) {
      Spec spec(op);
      spec.values.set_text("checkpoints", checkpoints);
      const std::vector<Config> space = search_space(spec, kH200);
      for (const Workload& work : {Workload{}, Workload{4096, 6, 4096, 2048}, Workload{512, 1, 1536, 512},
                                   Workload{131'072, 1, 4096, 131'072}}) {
        const Config config = builtin_config(spec, "sm_90", work);
        EXPECT_NE(std::ranges::find(space, config), space.end()) << config.values.text();
      }
    }
  }
}

// A value that changes nothing would be tuned again and again under another name.
TEST(SearchSpace, K40_NoTwoConfigsPrintTheSameCode) {
  for (const Operator op : kOperators) {
    const Spec spec(op);
    const std::vector<Config> space = search_space(spec, kH200);
    std::map<std::string, std::string> seen;
    for (const Config& config : space) {
      const auto [at, fresh] = seen.emplace(source_digest(spec, config), config.values.text());
      EXPECT_TRUE(fresh) << at->second << "\n" << config.values.text();
    }
    EXPECT_GT(seen.size(), 450U);
  }
}

TEST(SearchSpace, K40_WhatIsFixedIsNoChoice) {
  Spec spec(Operator::ssm_pack_bwd);
  spec.values.set("checkpoints", 1);
  EXPECT_EQ(values_of(search_space(spec, kH200), "checkpoint_tokens"), (std::set<int>{8}));
  EXPECT_EQ(values_of(search_space(spec, kH200), "convert"), (std::set<int>{1}));
  const std::vector<Config> convolution = search_space(Spec(Operator::conv1d_pack_bwd), kH200);
  EXPECT_EQ(values_of(convolution, "early_sum"), (std::set<int>{1}));
  for (const Config& config : convolution) {
    EXPECT_TRUE(config.values["stages"] == 0 || config.values["prefetch"] == 1);
  }
  EXPECT_EQ(search_space(Spec(Operator::sequence_map), kH200).size(), 1U);
}

TEST(SearchSpace, LeavesOutWhatAnArchitectureLacks) {
  const DeviceLimits turing{"sm_75", 64 * 1024};
  const std::vector<Config> backward = search_space(Spec(Operator::ssm_pack_bwd), turing);
  ASSERT_GT(backward.size(), 50U);
  for (const char* field : {"copies", "channel_sums", "convert"}) {
    EXPECT_EQ(values_of(backward, field), (std::set<int>{0})) << field;
  }
  const std::vector<Config> convolution = search_space(Spec(Operator::conv1d_pack_bwd), {"sm_89", 99 * 1024});
  EXPECT_EQ(values_of(convolution, "early_sum"), (std::set<int>{0}));
  EXPECT_EQ(values_of(convolution, "stages"), (std::set<int>{0, 2, 4}));
  Spec channel_major(Operator::conv1d_pack_fwd);
  channel_major.values.set_text("layout", "channel-major");
  EXPECT_EQ(values_of(search_space(channel_major, kH200), "vector"), (std::set<int>{1}));
}

TEST(SearchSpace, HoldsTheSharedMemoryOfABlock) {
  const Spec spec(Operator::ssm_pack_bwd);
  const std::size_t all = search_space(spec, kH200).size(), few = search_space(spec, {"sm_90", 48 * 1024}).size();
  EXPECT_LT(few, all);
  EXPECT_GT(few, 0U);
  Config large = builtin_config(spec, "sm_90");
  large.values.set("tile_tokens", 64);
  const std::string why = refusal(spec, large, {"sm_90", 48 * 1024}).value_or("it was taken");
  EXPECT_NE(why.find("ssm_pack_bwd_checkpoints needs "), std::string::npos) << why;
  EXPECT_NE(why.find("bytes of shared memory a block, sm_90 gives 49152"), std::string::npos) << why;
  large.values.set("copies", 1);
  EXPECT_NE(refusal(spec, large, {"sm_75", 1 << 20}).value_or("it was taken").find("came with sm_80"),
            std::string::npos);
}

TEST(SearchSpace, EverySpecHasConfigsToTry) {
  for (const Operator op : kOperators) {
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      for (int size = 1; size <= (is_scan(op) ? 512 : 16); size = size < 16 ? size + 1 : 2 * size) {
        Spec spec(op);
        spec.values.set_text("dtype", dtype);
        spec.values.set(is_scan(op) ? "d_state" : "conv_width", size);
        EXPECT_GE(search_space(spec, kH200).size(), 48U) << spec.values.text();
      }
    }
  }
}

TEST(Candidates, ShapesThatCannotTellConfigsApart) {
  Config scan(Operator::ssm_pack_fwd);
  scan.values.set("segments", 1);
  EXPECT_FALSE(fits_shape(scan, {.tokens = 32'768, .sequences = 54, .dim = 64, .longest = 1024}));
  EXPECT_TRUE(fits_shape(scan, {.tokens = 32'768, .sequences = 54, .dim = 64, .longest = 1025}));
  Config convolution(Operator::conv1d_pack_bwd);
  convolution.values.set("tile_tokens", 512);
  EXPECT_FALSE(fits_shape(convolution, {.tokens = 256, .sequences = 1, .dim = 64, .longest = 256}));
  EXPECT_TRUE(fits_shape(convolution, {.tokens = 257, .sequences = 1, .dim = 64, .longest = 257}));
}

TEST(Candidates, NeighboursDifferInOneFieldOrTwo) {
  const Spec spec(Operator::ssm_pack_bwd);
  const Config from = builtin_config(spec, "sm_90");
  SplitMix64 random(7);
  const std::vector<Config> around = neighbours(spec, from, kH200, {32'768, 54, 4096, 2048}, 8, random);
  ASSERT_GT(around.size(), 16U);
  int singles = 0, pairs = 0;
  for (const Config& config : around) {
    int changed = 0;
    for (const Field& field : config.values.table()) {
      if (config.values[field.name] != from.values[field.name]) ++changed;
    }
    EXPECT_TRUE(changed == 1 || changed == 2) << config.values.text();
    (changed == 1 ? singles : pairs) += 1;
    EXPECT_EQ(refusal(spec, config, kH200), std::nullopt);
  }
  EXPECT_GE(singles, 8);
  EXPECT_GE(pairs, 1);
}

TEST(SourceDigest, DependsOnCodeNotOnComments) {
  EXPECT_EQ(without_comments("// key\nint a = 1;  // one\n\n/* two\nlines */int b;\n"), "int a = 1;\n int b;\n");
  EXPECT_EQ(without_comments("asm(\"// not one\");\nchar c = '\"'; // one\n"),
            "asm(\"// not one\");\nchar c = '\"';\n");
  EXPECT_EQ(without_comments("a \"never closed"), "a \"never closed\n");
  const Spec spec(Operator::ssm_pack_fwd);
  Config config = builtin_config(spec, "sm_90");
  const std::string digest = source_digest(spec, config);
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(source_digest(spec, config), digest);
  config.values.set("min_blocks", 5);
  EXPECT_NE(source_digest(spec, config), digest);
  // The comments hold every value, so there were some to leave out.
  EXPECT_EQ(without_comments(generate(spec, config).text).find("Key:"), std::string::npos);
}

}  // namespace
}  // namespace packjit
