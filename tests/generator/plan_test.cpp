#include <gtest/gtest.h>

#include <stdexcept>
#include <tuple>

#include "database/builtin_config.hpp"
#include "generator/operators.hpp"

namespace packjit {
namespace {

Problem problem(std::int64_t tokens, std::int64_t dim, std::int64_t sequences) {
  Problem p;
  p.sizes.batch = 1;
  p.sizes.seqlen = tokens;
  p.sizes.dim = dim;
  p.sizes.groups = 1;
  p.sizes.d_state = 16;
  p.sizes.conv_width = 4;
  p.sizes.n_sequences = sequences;
  p.items = sequences;
  return p;
}

TEST(Plan, OneBlockForEachSequenceAndStretchOfChannels) {
  const Spec spec(Operator::ssm_pack_fwd);
  Config config(Operator::ssm_pack_fwd);
  config.values.set("block", 128);
  config.values.set("lanes", 4);  // 32 channels a block
  const Plan p = plan(spec, config, problem(1000, 100, 7));
  ASSERT_EQ(p.launches.size(), 1u);
  EXPECT_EQ(p.launches[0].grid_x, 4u);
  EXPECT_EQ(p.launches[0].grid_y, 7u);
  EXPECT_EQ(p.launches[0].block, 128u);
  EXPECT_EQ(p.workspace_bytes, 0);
}

TEST(Plan, SecondGridDimensionIsFolded) {
  const Spec spec(Operator::ssm_pack_fwd);
  const Plan p = plan(spec, builtin_config(spec, "sm_90"), problem(100'000, 8, 100'000));
  EXPECT_EQ(p.launches[0].grid_y, 65'535u);
}

TEST(Plan, ConvolutionBlocksHaveSeveralTilesWhoseSumsAreAddedThere) {
  const Spec spec(Operator::conv1d_pack_bwd);
  Config config(Operator::conv1d_pack_bwd);
  for (const auto& [field, value] : {std::pair{"block", 128}, {"block_tiles", 4}, {"tile_tokens", 64}, {"vector", 4}}) {
    config.values.set(field, value);
  }
  // 16 tiles are 4 groups; 32 threads of a tile have 128 channels.
  const Plan p = plan(spec, config, problem(1000, 256, 7));
  ASSERT_EQ(p.launches.size(), 2u);
  EXPECT_EQ(p.launches[0].grid_x, 2u);
  EXPECT_EQ(p.launches[0].grid_y, 4u);
  EXPECT_EQ(p.launches[0].shared_bytes, 10'240u);  // five sums for each of four channels of 128 threads
  EXPECT_EQ(p.workspace_bytes, 20'480);            // five sums for each of 256 channels and 4 groups
  EXPECT_EQ(p.launches[1].grid_x, 40u);            // 1280 sums, 32 a block
  EXPECT_EQ(p.launches[1].block, 256u);
  EXPECT_FALSE(p.launches[1].early);
  config.values.set("early_sum", 1);
  EXPECT_FALSE(plan(spec, config, problem(1000, 256, 7)).launches[0].early);
  EXPECT_TRUE(plan(spec, config, problem(1000, 256, 7)).launches[1].early);

  config.values.set("load_tokens", 4);
  config.values.set("stages", 2);  // each thread has 2 * 64 bytes of x and dout, before any sums
  EXPECT_EQ(plan(spec, config, problem(1000, 256, 7)).launches[0].shared_bytes, 16'384u);
  config.values.set("stages", 8);
  config.values.set("load_tokens", 8);
  EXPECT_THROW(check_pair(spec, config), std::invalid_argument);
  config.values.set("stages", 0);

  config.values.set("block_tiles", 256);
  EXPECT_THROW(check_pair(spec, config), std::invalid_argument);
  config.values.set("block_tiles", 1);
  EXPECT_EQ(plan(spec, config, problem(1000, 256, 7)).launches[0].shared_bytes, 0u);
}

TEST(Plan, ConvolutionGridOfTheChannelMajorLayoutHasTokensFirst) {
  Spec spec(Operator::conv1d_pack_fwd);
  spec.values.set_text("layout", "channel-major");
  Config config = builtin_config(spec, "sm_90");
  config.values.set("block", 64);
  config.values.set("block_tiles", 32);
  config.values.set("tile_tokens", 16);
  const Plan p = plan(spec, config, problem(1000, 75'001, 7));
  EXPECT_EQ(p.launches[0].grid_x, 2u);       // 63 tiles, 32 a block
  EXPECT_EQ(p.launches[0].grid_y, 37'501u);  // two channels a block
}

TEST(Plan, ShortConvolutionsFitIntoOneRoundOfThreads) {
  const Workload short_work{4096, 1, 4096}, long_work{32'768, 1, 4096};
  for (const auto& [op, threads, longest] :
       {std::tuple{Operator::conv1d_pack_fwd, 132 * 896, 64}, {Operator::conv1d_pack_bwd, 132 * 512, 128}}) {
    const Spec spec(op);
    const Config config = builtin_config(spec, "sm_90", short_work);
    const KernelLaunch launch = plan(spec, config, problem(4096, 4096, 1)).launches[0];
    EXPECT_LE(launch.grid_x * launch.grid_y * launch.block, static_cast<std::uint32_t>(threads));
    EXPECT_EQ(builtin_config(spec, "sm_90", long_work).values["tile_tokens"], longest);
  }
}

TEST(Plan, BackwardWorkspaceIsBoundedInTheNumberOfSequences) {
  const Spec spec(Operator::ssm_pack_bwd);
  const Config config = builtin_config(spec, "sm_90");
  const Plan few = plan(spec, config, problem(65'536, 64, 128));
  const Plan many = plan(spec, config, problem(65'536, 64, 4096));
  // Sums of dA over blocks do not grow beyond 128 of them; each sequence more adds at most one checkpoint of 64 * 16
  // floats.
  EXPECT_EQ(many.workspace_bytes - few.workspace_bytes, std::int64_t{4096 - 128} * 64 * 16 * 4);
}

TEST(Plan, AMapTakesTilesOfTokensOrOfSequences) {
  Spec spec(Operator::sequence_map);
  Config config(Operator::sequence_map);
  config.values.set("block", 64);
  const Plan tokens = plan(spec, config, problem(1000, 0, 130));
  ASSERT_EQ(tokens.launches.size(), 5u);
  EXPECT_EQ(tokens.launches[0].grid_x, 16u);
  EXPECT_EQ(tokens.launches[4].grid_x, 16u);
  spec.values.set_text("form", "cu_seqlens");
  const Plan offsets = plan(spec, config, problem(1000, 0, 130));
  ASSERT_EQ(offsets.launches.size(), 3u);
  EXPECT_EQ(offsets.launches[0].grid_x, 3u);
  EXPECT_EQ(offsets.launches[2].grid_x, 16u);
  config.values.set("digit_bits", 8);  // 256 counters for each of 64 threads
  EXPECT_THROW(check_pair(spec, config), std::invalid_argument);
}

TEST(Plan, BuiltInConfigurationsAreLegalForEverySpec) {
  for (const Operator op : kOperators) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      for (int size = 1; size <= (is_scan(op) ? 512 : 16); ++size) {
        Spec spec(op);
        spec.values.set("dtype", static_cast<int>(dtype));
        spec.values.set(is_scan(op) ? "d_state" : "conv_width", size);
        for (const char* arch : {"sm_75", "sm_90", "sm_120", "host"}) {
          for (const Workload& work : {Workload{}, Workload{16, 1, 8}}) {
            EXPECT_NO_THROW(check_pair(spec, builtin_config(spec, arch, work))) << spec.values.text();
            // Shared memory of a block, bytes: sm_75, and the least of all later ones (sm_86, sm_89, sm_120).
            const std::uint32_t most = std::string(arch) == "sm_75" ? 64 * 1024 : 99 * 1024;
            Problem p = problem(64, 64, 2);
            p.sizes.d_state = p.sizes.conv_width = size;
            for (const KernelLaunch& launch : plan(spec, builtin_config(spec, arch, work), p).launches) {
              EXPECT_LE(launch.shared_bytes, most) << spec.values.text();
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace packjit
