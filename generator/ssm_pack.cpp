#include "generator/ssm_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace packjit {
namespace {

constexpr std::string_view kGroupLabels[] = {"one", "many"};

constexpr Field kSpecFields[] = {
    kDtypeField,
    {"d_state", 1, 512, 16, {}, "states of a channel"},
    {"softplus", 0, 1, 1, kSwitch, "dt = softplus(delta + delta_bias), else their sum"},
    {"D", 0, 1, 1, kSwitch, "D * u is added to the output"},
    {"z", 0, 1, 1, kSwitch, "the output is gated by silu(z)"},
    {"delta_bias", 0, 1, 1, kSwitch, "delta has a bias"},
    {"groups", 0, 1, 0, kGroupLabels, "whether all channels share one B and C"},
    {"initial_states", 0, 1, 0, kSwitch, "each sequence begins with a given state"},
    {"final_states", 0, 1, 0, kSwitch, "the last state of each sequence is an output"},
    kLayoutField,
};
constexpr Field kForwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"lanes", 1, 32, 1, {}, "neighbouring threads that share a channel's states"},
    {"tile_tokens", 1, 256, 16, {}, "tokens staged in shared memory at a time"},
    {"vector", 1, 8, 2, {}, "elements that one load or store moves"},
    {"min_blocks", 1, 16, 4, {}, "blocks that a multiprocessor must be able to hold"},
    kConvertField,
};
constexpr Field kBackwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"lanes", 1, 32, 8, {}, "neighbouring threads that share a channel's states"},
    {"channel_groups", 1, 32, 8, {}, "channels that one thread takes in turn within a tile"},
    {"tile_tokens", 1, 256, 8, {}, "tokens staged in shared memory at a time, and between two state checkpoints"},
    {"step_tokens", 1, 16, 8, {}, "tokens whose states a thread holds in registers at a time"},
    {"vector", 1, 8, 2, {}, "elements that one load or store moves"},
    {"min_blocks", 1, 16, 4, {}, "blocks that a multiprocessor must be able to hold"},
    kConvertField,
};
constexpr TensorRule kForwardTensors[] = {
    {"u", "batch seqlen dim", false, false, ""},
    {"delta", "batch seqlen dim", false, false, ""},
    {"A", "dim d_state", true, false, ""},
    {"B", "batch seqlen groups d_state", false, false, ""},
    {"C", "batch seqlen groups d_state", false, false, ""},
    {"D", "dim", true, false, "D"},
    {"z", "batch seqlen dim", false, false, "z"},
    {"delta_bias", "dim", true, false, "delta_bias"},
    {"initial_states", "n_sequences dim d_state", true, false, "initial_states"},
    {"out", "batch seqlen dim", false, true, ""},
    {"final_states", "n_sequences dim d_state", true, true, "final_states"},
};
constexpr TensorRule kBackwardTensors[] = {
    {"u", "batch seqlen dim", false, false, ""},
    {"delta", "batch seqlen dim", false, false, ""},
    {"A", "dim d_state", true, false, ""},
    {"B", "batch seqlen groups d_state", false, false, ""},
    {"C", "batch seqlen groups d_state", false, false, ""},
    {"D", "dim", true, false, "D"},
    {"z", "batch seqlen dim", false, false, "z"},
    {"delta_bias", "dim", true, false, "delta_bias"},
    {"initial_states", "n_sequences dim d_state", true, false, "initial_states"},
    {"dout", "batch seqlen dim", false, false, ""},
    {"dfinal_states", "n_sequences dim d_state", true, false, "final_states"},
    {"du", "batch seqlen dim", false, true, ""},
    {"ddelta", "batch seqlen dim", false, true, ""},
    {"dA", "dim d_state", true, true, ""},
    {"dB", "batch seqlen groups d_state", false, true, ""},
    {"dC", "batch seqlen groups d_state", false, true, ""},
    {"dD", "dim", true, true, "D"},
    {"dz", "batch seqlen dim", false, true, "z"},
    {"ddelta_bias", "dim", true, true, "delta_bias"},
    {"dinitial_states", "n_sequences dim d_state", true, true, "initial_states"},
};

constexpr int kSumBlock = 128;                 // threads of the summing kernels, as in the template
constexpr std::int64_t kMostItemBlocks = 128;  // bounds the partial sums of dA
constexpr std::int64_t kFloat = sizeof(float);

struct Shape {
  std::int64_t states;    // of one lane
  std::int64_t padded;    // states of a channel with the unused ones of its last lane
  std::int64_t channels;  // of one block
};

Shape shape_of(const Spec& spec, const Config& config) {
  const std::int64_t lanes = config.values["lanes"];
  const std::int64_t states = ceil_div(spec.values["d_state"], lanes);
  const std::int64_t groups = is_backward(spec.op) ? config.values["channel_groups"] : 1;
  return {states, states * lanes, config.values["block"] / lanes * groups};
}

/// Dynamic shared memory of a block, in bytes, as the templates lay it out.
struct SharedBytes {
  std::uint32_t whole;
  std::uint32_t checkpoints;  // of ssm_pack_bwd_checkpoints, which needs the first arrays only
};

SharedBytes shared_bytes(const Spec& spec, const Config& config) {
  const Shape shape = shape_of(spec, config);
  const std::int64_t tile = config.values["tile_tokens"];
  const std::int64_t block = config.values["block"];
  // Each array begins at a multiple of 16 bytes.
  const auto rounded = [](std::int64_t floats) { return ceil_div(floats, 4) * 4; };
  const auto bytes = [](std::int64_t floats) { return static_cast<std::uint32_t>(kFloat * floats); };
  const std::int64_t common = 2 * rounded(tile * shape.padded)  // B and C
                              + 2 * rounded(shape.channels);    // delta_bias and D
  if (!is_backward(spec.op)) return {bytes(common + 3 * rounded(tile * shape.channels)), 0};
  const int vector = config.values["vector"];
  const std::int64_t columns = tile * (shape.channels + (vector >= 4 ? shape.channels / vector : 0));
  const std::int64_t own = config.values["channel_groups"] * shape.states * block;
  const std::int64_t warp_bc = block / kWarp * config.values["step_tokens"] * 2 * shape.padded;
  const std::int64_t sums = spec.values["z"] != 0 ? 3 : 2;
  std::int64_t floats = common;
  floats += rounded(columns * 4) + 2 * rounded(own);  // inputs, rates, states
  const std::int64_t checkpoints = floats;
  floats += 2 * rounded(own);                 // dA and its error
  floats += rounded(columns * sums);          // sums of a token
  floats += rounded(warp_bc);                 // dB and dC of each warp
  floats += 2 * rounded(2 * shape.channels);  // dD and ddelta_bias, each with its error
  return {bytes(floats), bytes(checkpoints)};
}

std::int64_t blocks_per_group(const Spec& spec, const Config& config, const Sizes& sizes) {
  return ceil_div(sizes.dim / std::max<std::int64_t>(sizes.groups, 1), shape_of(spec, config).channels);
}

}  // namespace

std::span<const Field> ssm_spec_fields() { return kSpecFields; }

std::span<const Field> ssm_config_fields(bool backward) {
  if (backward) return kBackwardConfig;
  return kForwardConfig;
}

std::span<const TensorRule> ssm_tensor_rules(bool backward) {
  if (backward) return kBackwardTensors;
  return kForwardTensors;
}

void check_ssm_pair(const Spec& spec, const Config& config) {
  check_vector(spec, config);
  for (std::string_view field : {"block", "lanes", "tile_tokens"}) require_power_of_two(config, field);
  const Shape shape = shape_of(spec, config);
  const int held = static_cast<int>(shape.states) * (is_backward(spec.op) ? config.values["step_tokens"] : 1);
  constexpr int kMostHeld = 16;
  if (held > kMostHeld) {
    throw std::invalid_argument(fmt::format(
        "d_state = {} over {} lanes keeps {} states a thread in registers; at most {} fit, so raise lanes{}",
        spec.values["d_state"], config.values["lanes"], held, kMostHeld,
        is_backward(spec.op) ? " or lower step_tokens" : ""));
  }
  check_min_blocks(config);
  if (config.values["vector"] > shape.channels) {
    throw std::invalid_argument(
        fmt::format("vector = {} is more than the {} channels of a block", config.values["vector"], shape.channels));
  }
  if (is_backward(spec.op)) {
    require_power_of_two(config, "step_tokens");
    require_power_of_two(config, "channel_groups");
    if (config.values["step_tokens"] > config.values["tile_tokens"]) {
      throw std::invalid_argument(fmt::format("step_tokens = {} is more than tile_tokens = {}",
                                              config.values["step_tokens"], config.values["tile_tokens"]));
    }
  }
}

SsmWorkspace ssm_workspace(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const Shape shape = shape_of(spec, config);
  const std::int64_t tokens = sizes.batch * sizes.seqlen;
  const std::int64_t d_state = spec.values["d_state"];
  SsmWorkspace space;
  space.blocks_per_group = blocks_per_group(spec, config, sizes);
  space.item_blocks = std::clamp<std::int64_t>(problem.items, 1, kMostItemBlocks);
  // Every sequence starts a tile of its own, so each adds at most one to the tiles of the tokens laid end to end.
  const std::int64_t tiles = tokens / config.values["tile_tokens"] + sizes.n_sequences + 1;
  space.checkpoints = 0;
  space.partial_bc = space.checkpoints + tiles * sizes.dim * shape.padded * kFloat;
  space.partial_channels = space.partial_bc + space.blocks_per_group * tokens * sizes.groups * 2 * d_state * kFloat;
  space.bytes = space.partial_channels + space.item_blocks * sizes.dim * (d_state + 2) * kFloat;
  return space;
}

Plan ssm_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const std::string name(name_of(spec.op));
  const auto block = static_cast<std::uint32_t>(config.values["block"]);
  const SharedBytes shared = shared_bytes(spec, config);
  const auto channel_blocks = static_cast<std::uint32_t>(blocks_per_group(spec, config, sizes) * sizes.groups);
  Plan result;
  if (!is_backward(spec.op)) {
    const auto items = static_cast<std::uint32_t>(std::clamp<std::int64_t>(problem.items, 1, kLongestGridY));
    result.launches.push_back({name, channel_blocks, items, block, shared.whole});
    return result;
  }
  const SsmWorkspace space = ssm_workspace(spec, config, problem);
  const auto item_blocks = static_cast<std::uint32_t>(space.item_blocks);
  const std::int64_t bc_sums = sizes.batch * sizes.seqlen * sizes.groups * 2 * spec.values["d_state"];
  const std::int64_t channel_sums = sizes.dim * (spec.values["d_state"] + 2);
  result.launches = {
      {name + "_checkpoints", channel_blocks, item_blocks, block, shared.checkpoints},
      {name, channel_blocks, item_blocks, block, shared.whole},
      {name + "_sum_bc", static_cast<std::uint32_t>(ceil_div(bc_sums, kSumBlock)), 1, kSumBlock, 0},
      {name + "_sum_channels", static_cast<std::uint32_t>(ceil_div(channel_sums, kSumBlock)), 1, kSumBlock, 0}};
  result.workspace_bytes = space.bytes;
  return result;
}

}  // namespace packjit
