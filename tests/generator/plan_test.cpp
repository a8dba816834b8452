#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include "database/builtin_config.hpp"
#include "generator/operators.hpp"
#include "generator/ssm_pack.hpp"

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
       {std::tuple{Operator::conv1d_pack_fwd, 132 * 896, 64}, {Operator::conv1d_pack_bwd, 132 * 512, 512}}) {
    const Spec spec(op);
    const Config config = builtin_config(spec, "sm_90", short_work);
    const KernelLaunch launch = plan(spec, config, problem(4096, 4096, 1)).launches[0];
    EXPECT_LE(launch.grid_x * launch.grid_y * launch.block, static_cast<std::uint32_t>(threads));
    EXPECT_EQ(builtin_config(spec, "sm_90", long_work).values["tile_tokens"], longest);
  }
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

/// Calls check(spec, config) for the built-in Configs of every size and dtype: on `arch`, with much work and with
/// little.
template <typename Check>
void for_each_builtin_config(Operator op, const std::string& arch, const Check& check) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    for (int size = 1; size <= (is_scan(op) ? 512 : 16); ++size) {
      for (const int checkpoints : {0, is_scan(op) ? 1 : 0}) {
        Spec spec(op);
        spec.values.set("dtype", static_cast<int>(dtype));
        spec.values.set(is_scan(op) ? "d_state" : "conv_width", size);
        if (checkpoints != 0) spec.values.set("checkpoints", 1);
        // Much work, little, and one long sequence, which is cut in segments.
        for (const Workload& work : {Workload{}, Workload{16, 1, 8}, Workload{65'536, 1, 512, 65'536}}) {
          check(spec, builtin_config(spec, arch, work));
        }
      }
    }
  }
}

TEST(Plan, BackwardWorkspaceIsBoundedInStatesAndSequences) {
  constexpr std::int64_t kTokens = 8192, kDim = 2048;
  const double elements = static_cast<double>(kTokens * kDim);
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_90"}) {
    for_each_builtin_config(Operator::ssm_pack_bwd, arch, [&](const Spec& spec, const Config& config) {
      std::int64_t one_sequence = 0;
      for (const std::int64_t sequences : {std::int64_t{1}, std::int64_t{300}, kTokens}) {
        Problem p = problem(kTokens, kDim, sequences);
        p.sizes.d_state = spec.values["d_state"];
        p.segments = std::max(sequences, kTokens / 1024);
        const std::int64_t bytes = plan(spec, config, p).workspace_bytes;
        // Without checkpoints of its own the backward needs its partial sums only.
        const double most = spec.values["checkpoints"] != 0 && config.values["segments"] == 0 ? 24 : 64;
        ASSERT_LE(static_cast<double>(bytes) / elements, most) << spec.values.text() << "; " << config.values.text();
        if (sequences == 1) one_sequence = bytes;
        // Sums over time: two for each of dim * (d_state + 2), and no more than 128 times.
        const std::int64_t sums = 2 * 4 * kDim * (spec.values["d_state"] + 2);
        ASSERT_LE(bytes - one_sequence, 127 * sums) << sequences << " sequences: " << spec.values.text();
      }
    });
  }
}

TEST(Plan, CheckpointsTakeSpaceByTokensAlone) {
  // The forward stores one for each 8, 16, 32 or 64 tokens (d_state up to 16, 128, 256, 512), and room for one more.
  for (const auto& [d_state, interval] :
       {std::pair{1, 8}, {16, 8}, {17, 16}, {128, 16}, {129, 32}, {256, 32}, {257, 64}, {512, 64}}) {
    Sizes sizes = problem(1000, 8, 900).sizes;
    sizes.batch = 2;
    sizes.d_state = d_state;
    EXPECT_EQ(ssm_checkpoints(sizes), 2000 / interval + 1) << d_state;
  }
  // d_state 16: the backward's own checkpoints are 8 bytes an element, and stored ones take none of the workspace.
  Spec spec(Operator::ssm_pack_bwd);
  const Config config = builtin_config(spec, "sm_90");
  const Problem p = problem(65'536, 64, 128);
  const std::int64_t recomputed = plan(spec, config, p).workspace_bytes;
  EXPECT_EQ(plan(spec, config, p).launches.size(), 4u);
  spec.values.set("checkpoints", 1);
  EXPECT_EQ(recomputed - plan(spec, config, p).workspace_bytes, std::int64_t{65'536 / 8 + 1} * 64 * 16 * 4);
  ASSERT_EQ(plan(spec, config, p).launches.size(), 3u);
  EXPECT_EQ(plan(spec, config, p).launches[0].entry, "ssm_pack_bwd");
}

/// Specs of the scans with complex A or constant B or C: each combination, at some d_state.
template <typename Visit>
void for_each_simple_scan(Operator op, const Visit& visit) {
  for (int kind = 1; kind < 8; ++kind) {
    for (const int d_state : {1, 5, 16, 64, 200, 512}) {
      Spec spec(op);
      spec.values.set("d_state", d_state);
      spec.values.set("constant_B", kind & 1);
      spec.values.set("constant_C", kind >> 1 & 1);
      spec.values.set("complex_A", kind >> 2);
      visit(spec, builtin_config(spec, "sm_90"));
    }
  }
}

TEST(Plan, SimpleScansHaveBoundsOfTheirOwn) {
  constexpr std::int64_t kTokens = 8192, kDim = 2048;
  for_each_simple_scan(Operator::ssm_pack_bwd, [&](const Spec& spec, const Config& config) {
    Problem p = problem(kTokens, kDim, 300);
    p.sizes.d_state = spec.values["d_state"];
    if (spec.values["constant_B"] + spec.values["constant_C"] == 2) p.sizes.groups = 1;
    const Plan planned = plan(spec, config, p);
    EXPECT_LE(static_cast<double>(planned.workspace_bytes) / static_cast<double>(kTokens * kDim), 64)
        << spec.values.text();
    for (const KernelLaunch& launch : planned.launches) EXPECT_LE(launch.shared_bytes, 48U << 10) << launch.entry;
    // Without B and C of tokens there is nothing to sum over channels.
    EXPECT_EQ(planned.launches.size(), spec.values["constant_B"] + spec.values["constant_C"] == 2 ? 3U : 4U);
  });
  for_each_simple_scan(Operator::ssm_pack_fwd, [&](const Spec& spec, const Config& config) {
    Problem p = problem(kTokens, kDim, 300);
    EXPECT_EQ(plan(spec, config, p).workspace_bytes, 0);
  });
}

std::string refusal(const Spec& spec, const Config& config) {
  try {
    check_pair(spec, config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Plan, CheckpointsOfTheForwardFixThoseOfTheBackward) {
  for (const auto& [d_state, interval] : {std::pair{16, 8}, {200, 32}, {512, 64}}) {
    Spec spec(Operator::ssm_pack_bwd);
    spec.values.set("d_state", d_state);
    Config config = builtin_config(spec, "sm_90");
    config.values.set("checkpoint_tokens", 2 * interval);
    EXPECT_EQ(refusal(spec, config), "nothing was refused");  // its own ones it may have anywhere
    spec.values.set("checkpoints", 1);
    EXPECT_EQ(refusal(spec, config), "the forward stores checkpoints every " + std::to_string(interval) +
                                         " tokens at d_state = " + std::to_string(d_state) +
                                         ", so checkpoint_tokens must be as many, not " + std::to_string(2 * interval));
  }
}

TEST(Plan, AddendsAreCutToTf32ForBf16Only) {
  Spec spec(Operator::ssm_pack_bwd);
  Config config = builtin_config(spec, "sm_90");
  EXPECT_EQ(config.values.text("channel_sums"), "tensor");
  config.values.set("vector", 4);
  for (const auto& [dtype, built_in] : {std::pair{"fp32", "split"}, {"fp16", "split"}}) {
    spec.values.set_text("dtype", dtype);
    EXPECT_EQ(refusal(spec, config),
              std::string("channel_sums = tensor cuts the addends of dB and dC to tf32, which the "
                          "bounds of ") +
                  dtype + " do not allow; take channel_sums = split or registers");
    EXPECT_EQ(builtin_config(spec, "sm_90").values.text("channel_sums"), built_in);
  }
}

TEST(Plan, InstructionsThatAnArchitectureLacksAreRefused) {
  const std::tuple<Operator, const char*, const char*, const char*> cases[] = {
      {Operator::ssm_pack_fwd, "copies", "async", "sm_75"},
      {Operator::ssm_pack_bwd, "channel_sums", "split", "sm_75"},
      {Operator::conv1d_pack_fwd, "convert", "native", "sm_75"},
      {Operator::conv1d_pack_bwd, "early_sum", "on", "sm_89"}};
  for (const auto& [op, field, value, arch] : cases) {
    Config config = builtin_config(Spec(op), arch);
    EXPECT_NO_THROW(check_arch(config, arch));
    config.values.set_text(field, value);
    EXPECT_NO_THROW(check_arch(config, "sm_90a"));
    EXPECT_NO_THROW(check_arch(config, "host"));
    try {
      check_arch(config, arch);
      ADD_FAILURE() << field << " = " << value << " was taken on " << arch;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(field) + " = " + value), std::string::npos) << error.what();
    }
  }
}

TEST(Plan, BuiltInConfigurationsAreLegalForEverySpec) {
  // Shared memory of a block, KiB. An architecture that nobody has heard of has no less than the least since sm_80.
  const std::pair<const char*, int> most_kib[] = {{"sm_75", 64},  {"sm_80", 163},  {"sm_86", 99},  {"sm_89", 99},
                                                  {"sm_90", 227}, {"sm_100", 227}, {"sm_120", 99}, {"sm_999", 99},
                                                  {kAnyArch, 64}, {"host", 227}};
  for (const Operator op : kOperators) {
    for (const auto& [arch, kib] : most_kib) {
      for_each_builtin_config(op, arch, [&, kib = kib](const Spec& spec, const Config& config) {
        ASSERT_EQ(refusal(spec, config), "nothing was refused") << spec.values.text();
        ASSERT_NO_THROW(check_arch(config, arch)) << config.values.text();
        Problem p = problem(64, 64, 2);
        p.sizes.d_state = is_scan(op) ? spec.values["d_state"] : 0;
        p.sizes.conv_width = is_scan(op) ? 0 : spec.values["conv_width"];
        for (const KernelLaunch& launch : plan(spec, config, p).launches) {
          ASSERT_LE(launch.shared_bytes, static_cast<std::uint32_t>(kib) * 1024) << spec.values.text();
        }
      });
    }
  }
}

}  // namespace
}  // namespace packjit
