#include "database/builtin_config.hpp"

#include <algorithm>

#include "generator/shared_fields.hpp"
#include "generator/ssm_simple.hpp"
#include "templates/device/sequence_map.cuh"

namespace packjit {
namespace {

/// Scan configurations by d_state, measured on sm_90; the first row whose d_state is not below the Spec's is taken.
struct ForwardRow {
  int d_state, block, lanes, tile_tokens, vector, min_blocks;
};
constexpr ForwardRow kForward[] = {
    {16, 128, 1, 16, 8, 4},  {32, 128, 2, 16, 8, 4},  {64, 128, 4, 16, 8, 4},
    {128, 128, 8, 16, 8, 4}, {256, 256, 16, 8, 8, 2}, {512, 128, 32, 4, 4, 4},
};
/// The backward's. 13 states a lane, those of d_state 104, spill with a tile of 16 tokens.
struct BackwardRow {
  int d_state, block, lanes, tile_tokens, checkpoint_tokens, step_tokens, vector, min_blocks;
};
constexpr BackwardRow kBackward[] = {
    {4, 128, 1, 8, 8, 8, 8, 3},     {8, 128, 1, 8, 8, 4, 8, 3},     {16, 128, 1, 8, 8, 2, 8, 3},
    {32, 128, 2, 8, 16, 2, 8, 2},   {64, 128, 4, 8, 16, 2, 8, 2},   {96, 128, 8, 16, 16, 2, 8, 2},
    {104, 128, 8, 8, 16, 2, 8, 2},  {128, 128, 8, 16, 16, 2, 8, 2}, {256, 256, 16, 8, 32, 2, 8, 1},
    {512, 128, 32, 4, 64, 2, 4, 2},
};
/// The same where the work is little: more lanes share a channel.
constexpr BackwardRow kBackwardFew[] = {
    {8, 128, 2, 16, 8, 8, 8, 3},    {16, 128, 4, 16, 8, 8, 8, 3},  {32, 128, 8, 16, 16, 4, 8, 3},
    {64, 128, 8, 16, 16, 4, 8, 2},  {128, 128, 8, 8, 16, 2, 8, 2}, {256, 128, 32, 8, 32, 4, 4, 2},
    {512, 128, 32, 4, 64, 2, 4, 2},
};

template <typename Row>
const Row& row_for(std::span<const Row> rows, int d_state) {
  return *std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return d_state <= row.d_state; });
}

/// Threads that fill a large GPU: 512 on each of about 130 multiprocessors.
constexpr std::int64_t kThreadsToFill = 65536;

/// Cutting in segments costs a second pass over all tokens. It pays where the longest sequence alone takes longer than
/// that, about 0.1 us a token against 1.8 / 154 us for 1,000 elements on an H200.
bool segments_pay(const Workload& work) {
  constexpr std::int64_t kElementsATokenAlone = 8192;
  return work.longest > std::int64_t{2} * SEGMENT_TOKENS &&
         work.longest * kElementsATokenAlone > work.tokens * work.dim;
}

/// Whether asynchronous copies, tf32 sums and conversions of pairs may be used: they came with sm_80.
bool has_sm80(const std::string& arch) { return arch != "sm_75" && arch != kAnyArch; }

Config scan_config(const Spec& spec, const std::string& arch, const Workload& work) {
  Config config(spec.op);
  const bool segments = segments_pay(work);
  config.values.set("segments", segments ? 1 : 0);
  // LANES threads take one channel of one sequence or segment. Where those are too few, more lanes share a channel.
  const std::int64_t side_by_side = segments ? work.tokens / SEGMENT_TOKENS : work.sequences;
  const bool few = side_by_side * work.dim < kThreadsToFill;
  const int d_state = spec.values["d_state"];
  if (is_backward(spec.op)) {
    const auto& row = row_for<BackwardRow>(few ? std::span<const BackwardRow>(kBackwardFew) : kBackward, d_state);
    config.values.set("block", row.block);
    config.values.set("lanes", row.lanes);
    config.values.set("tile_tokens", row.tile_tokens);
    config.values.set("checkpoint_tokens", row.checkpoint_tokens);
    // Addends cut to tf32 keep the bounds of bf16 only.
    const auto dtype = static_cast<Dtype>(spec.values["dtype"]);
    const bool tensor = has_sm80(arch) && row.lanes <= 8;
    config.values.set_text("channel_sums", !tensor ? "registers" : dtype == Dtype::bf16 ? "tensor" : "split");
    // Splitting takes registers too; so do given states.
    const bool split = dtype != Dtype::bf16;
    const bool given_states = spec.values["initial_states"] + spec.values["final_states"] > 0;
    config.values.set("step_tokens",
                      d_state > 32 && (split || given_states) ? std::max(row.step_tokens / 2, 1) : row.step_tokens);
    config.values.set("vector", std::min(row.vector, row.block / row.lanes));
    config.values.set("min_blocks", split ? std::min(row.min_blocks, 2) : row.min_blocks);
  } else {
    const auto& row = row_for<ForwardRow>(kForward, d_state);
    config.values.set("block", row.block);
    const int lanes = few ? std::min({4 * row.lanes, kWarp, row.block}) : row.lanes;
    config.values.set("lanes", lanes);
    config.values.set("tile_tokens", row.tile_tokens);
    config.values.set("vector", std::min(row.vector, row.block / lanes));
    config.values.set("min_blocks", row.min_blocks);
  }
  return config;
}

/// Shared memory that one block can have, in bytes. A multiprocessor has as much, and kReservedBytes for each block.
constexpr std::uint32_t kReservedBytes = 1024;
std::uint32_t most_shared_bytes(const std::string& arch) {
  struct Row {
    const char* arch;
    std::uint32_t kib;
  };
  constexpr Row kRows[] = {{kAnyArch, 64}, {"sm_75", 64},   {"sm_80", 163},  {"sm_87", 163}, {"sm_90", 227},
                           {"host", 227},  {"sm_100", 227}, {"sm_103", 227}, {"sm_110", 227}};
  const Row* row = std::ranges::find(kRows, arch, &Row::arch);
  constexpr std::uint32_t kLeastSinceSm80 = 99;  // sm_86, sm_89, sm_120, sm_121
  return (row == std::end(kRows) ? kLeastSinceSm80 : row->kib) * 1024;
}

/// Halves the tiles until a block's shared memory is at most `most` bytes, and long ones until a multiprocessor can
/// hold min_blocks blocks: a longer tile saves less than another block's warps do.
void fit_shared(const Spec& spec, Config& config, std::uint32_t most) {
  constexpr int kLongTile = 16;
  Problem any;  // shared memory depends on Spec and Config only
  any.sizes = {.batch = 1, .seqlen = 1, .dim = 1, .groups = 1, .d_state = spec.values["d_state"]};
  const auto fits = [&](int tile) {
    const Plan planned = plan(spec, config, any);
    const std::uint32_t bytes =
        std::ranges::max_element(planned.launches, {}, &KernelLaunch::shared_bytes)->shared_bytes;
    const auto blocks = tile < kLongTile ? 1u : static_cast<std::uint32_t>(config.values["min_blocks"]);
    return blocks * (bytes + kReservedBytes) <= most + kReservedBytes;
  };
  for (int tile = config.values["tile_tokens"]; !fits(tile);) {
    tile /= 2;
    config.values.set("tile_tokens", tile);
    if (is_backward(spec.op)) config.values.set("step_tokens", std::min(config.values["step_tokens"], tile));
  }
}

Config conv_config(const Spec& spec, const Workload& work) {
  Config config(spec.op);
  const auto layout = static_cast<Layout>(spec.values["layout"]);
  const bool backward = is_backward(spec.op);
  // Wide filters keep more values a channel in registers, so fewer channels a thread, and more tokens loaded together.
  const int width = spec.values["conv_width"];
  const int wanted = layout != Layout::token_major ? 1 : width <= 4 ? 4 : width <= 8 ? 2 : 1;
  config.values.set("vector", wanted);
  config.values.set("load_tokens", wanted == 4 ? 4 : 8);
  // 32 KiB of shared memory a block, so that registers and not they say how many blocks fit.
  const bool staged = backward && wanted == 4;
  if (staged) config.values.set("stages", spec.values["dtype"] == static_cast<int>(Dtype::fp32) ? 2 : 4);
  // Tokens lie side by side: so do the tiles of a warp.
  if (layout == Layout::channel_major) config.values.set("block_tiles", kWarp);
  // Where the work is little, tiles are so short that one round of the threads that a large GPU holds does it all: 896
  // on each of 128 multiprocessors, backward 512, or 384 without stages. Multiples of 8, so that few lengths need a
  // kernel of their own.
  const std::int64_t held_threads = (!backward ? 896 : staged ? 512 : 384) * std::int64_t{128};
  constexpr int kTileStep = 8;
  const std::int64_t one_round = ceil_div(work.tokens * work.dim, wanted * held_threads * kTileStep) * kTileStep;
  constexpr int kShortestTile = 16;
  const int longest_tile = config.values["tile_tokens"];
  const auto tile = static_cast<int>(std::clamp<std::int64_t>(one_round, kShortestTile, longest_tile));
  config.values.set("tile_tokens", tile);
  // Much work is done with fewer and longer accesses.
  if (!backward && wanted == 4 && one_round > longest_tile) config.values.set("vector", 8);
  return config;
}

}  // namespace

Config builtin_config(const Spec& spec, const std::string& arch, const Workload& work) {
  if (spec.op == Operator::sequence_map) return Config(spec.op);
  if (is_scan(spec.op) && is_simple_scan(spec)) {
    Config simple = simple_scan_config(spec);
    if (!has_sm80(arch)) simple.values.set("convert", 0);
    return simple;
  }
  Config config = is_scan(spec.op) ? scan_config(spec, arch, work) : conv_config(spec, work);
  const int longest = kLongestAccess / static_cast<int>(size_of(static_cast<Dtype>(spec.values["dtype"])));
  config.values.set("vector", std::min(config.values["vector"], longest));
  if (spec.values["layout"] != static_cast<int>(Layout::token_major)) config.values.set("vector", 1);
  // The rows above limit registers to what was measured to pay on sm_90; elsewhere that could spill. So could what the
  // compiler does to hold more blocks of a convolution when it is left to itself.
  const bool more_code = spec.values["initial_states"] + spec.values["final_states"] > 0 ||
                         (is_scan(spec.op) && spec.values["groups"] > 0) ||
                         spec.values["layout"] != static_cast<int>(Layout::token_major);
  if (arch != "sm_90" || more_code) {
    config.values.set("min_blocks", is_scan(spec.op) ? std::min(config.values["min_blocks"], 2) : 1);
  }
  if (arch == "sm_90" && config.values.has("early_sum")) config.values.set("early_sum", 1);
  // Some have less than half the shared memory of sm_90.
  if (arch != "sm_90" && config.values.has("stages")) {
    config.values.set("stages", std::min(config.values["stages"], 2));
  }
  if (!has_sm80(arch)) {
    config.values.set("convert", 0);  // these instructions came with sm_80
    if (config.values.has("copies")) config.values.set("copies", 0);
    if (config.values.has("stages")) config.values.set("stages", 0);
  }
  if (is_scan(spec.op)) fit_shared(spec, config, most_shared_bytes(arch));
  return config;
}

}  // namespace packjit
