#include "generator/ssm_simple.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

namespace packjit {
namespace {

constexpr int kSumBlock = 128;  // threads of the summing kernels, as in the template
constexpr std::int64_t kFloat = sizeof(float);
constexpr int kMostStates = 16;         // of a thread
constexpr int kSharedBytes = 48 << 10;  // that the built-in Config keeps to, which every architecture gives a block

/// Config fields that are of the other kernels, and what they have to be here.
constexpr std::pair<std::string_view, int> kFixed[] = {
    {"tile_tokens", 1}, {"vector", 1}, {"segments", 0}, {"copies", 0}, {"channel_sums", 0}};

bool is_on(const Spec& spec, std::string_view field) { return spec.values[field] != 0; }

/// Floats that the states of one channel take; those of dB and dC of a token; and all sums over tokens of a channel:
/// dA, dB and dC where they are constant, dD and ddelta_bias. As in the template.
struct Floats {
  std::int64_t states, token, channel;
};
Floats floats_of(const Spec& spec) {
  const std::int64_t states = std::int64_t{spec.values["d_state"]} * (is_on(spec, "complex_A") ? 2 : 1);
  const int constant = spec.values["constant_B"] + spec.values["constant_C"];
  return {states, (2 - constant) * states, (1 + constant) * states + 2};
}

/// Dynamic shared memory of a block of ssm_pack_bwd: the states before each token of a step, then dB and dC of its
/// warps.
std::int64_t shared_bytes(const Spec& spec, const Config& config) {
  const std::int64_t block = config.values["block"], step = config.values["step_tokens"];
  const std::int64_t parts = is_on(spec, "complex_A") ? 2 : 1;
  const std::int64_t states = ceil_div(spec.values["d_state"], config.values["lanes"]);
  return kFloat * step * (states * parts * block + block / kWarp * floats_of(spec).token);
}

/// Tokens between two checkpoints, so that those take at most 32 bytes an element.
int checkpoint_interval(const Spec& spec) {
  constexpr std::int64_t kShortest = 8;
  const std::int64_t interval = std::max(kShortest, ceil_div(floats_of(spec).states, kShortest));
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(interval)));
}

}  // namespace

bool is_simple_scan(const Spec& spec) {
  return is_on(spec, "constant_B") || is_on(spec, "constant_C") || is_on(spec, "complex_A");
}

void check_simple_scan(const Spec& spec) {
  if (is_on(spec, "checkpoints")) {
    throw std::invalid_argument(
        "checkpoints = on does not go with complex_A, constant_B or constant_C: there the backward always computes its "
        "states itself; leave checkpoints off");
  }
  if (is_on(spec, "constant_B") && is_on(spec, "constant_C") && is_on(spec, "groups")) {
    throw std::invalid_argument(
        "groups = many does not go with constant B and C, which have no groups; it must be one");
  }
}

void check_simple_scan_pair(const Spec& spec, const Config& config) {
  check_simple_scan(spec);
  for (const auto& [field, value] : kFixed) {
    if (!config.values.has(field) || config.values[field] == value) continue;
    Config fitting = config;
    fitting.values.set(field, value);
    throw std::invalid_argument(
        fmt::format("{} = {} does not go with complex_A, constant_B or constant_C, whose kernels are written for "
                    "correctness; it must be {}",
                    field, config.values.text(field), fitting.values.text(field)));
  }
  for (std::string_view field : {"block", "lanes"}) require_power_of_two(config, field);
  check_min_blocks(config);
  const std::int64_t states = ceil_div(spec.values["d_state"], config.values["lanes"]);
  if (states > kMostStates) {
    throw std::invalid_argument(
        fmt::format("d_state = {} over {} lanes keeps {} states a thread in registers; at most {} fit, so raise lanes",
                    spec.values["d_state"], config.values["lanes"], states, kMostStates));
  }
  if (!is_backward(spec.op)) return;
  for (std::string_view field : {"checkpoint_tokens", "step_tokens"}) require_power_of_two(config, field);
  if (config.values["checkpoint_tokens"] < config.values["step_tokens"]) {
    throw std::invalid_argument(fmt::format("checkpoint_tokens = {} must be at least step_tokens = {}",
                                            config.values["checkpoint_tokens"], config.values["step_tokens"]));
  }
}

std::vector<FieldChoices> simple_scan_choices(const Spec& spec) {
  const Config config = simple_scan_config(spec);
  std::vector<FieldChoices> choices;
  for (const Field& field : config.values.table()) choices.push_back({field.name, {config.values[field.name]}});
  return choices;
}

Config simple_scan_config(const Spec& spec) {
  Config config(spec.op);
  for (const auto& [field, value] : kFixed) {
    if (config.values.has(field)) config.values.set(field, value);
  }
  constexpr std::uint64_t kStatesOfLane = 4;
  const auto d_state = static_cast<std::uint64_t>(spec.values["d_state"]);
  const std::uint64_t lanes = std::bit_ceil((d_state + kStatesOfLane - 1) / kStatesOfLane);
  config.values.set("lanes", static_cast<int>(std::min<std::uint64_t>(lanes, kWarp)));
  config.values.set("min_blocks", 1);
  if (!is_backward(spec.op)) return config;
  config.values.set("checkpoint_tokens", checkpoint_interval(spec));
  config.values.set("step_tokens", std::min(8, checkpoint_interval(spec)));
  for (const auto& [field, least] : {std::pair{"block", kWarp}, std::pair{"step_tokens", 1}}) {
    while (shared_bytes(spec, config) > kSharedBytes && config.values[field] > least) {
      config.values.set(field, config.values[field] / 2);
    }
  }
  return config;
}

SsmWorkspace simple_scan_workspace(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const Floats floats = floats_of(spec);
  const std::int64_t channels = config.values["block"] / config.values["lanes"];
  SsmWorkspace space;
  space.items = problem.items;
  space.blocks_per_group = ceil_div(sizes.dim / std::max<std::int64_t>(sizes.groups, 1), channels);
  if (!is_backward(spec.op)) return space;
  const std::int64_t tokens = sizes.batch * sizes.seqlen, elements = tokens * sizes.dim;
  const std::int64_t bytes_token = tokens * sizes.groups * floats.token * kFloat;
  const std::int64_t bytes_channel = 2 * sizes.dim * floats.channel * kFloat;
  const std::int64_t interval = config.values["checkpoint_tokens"];
  if (bytes_token > 0) {
    space.blocks_per_group =
        std::clamp<std::int64_t>(kSsmPartialBytes * elements / bytes_token, 1, space.blocks_per_group);
  }
  space.item_blocks = std::clamp<std::int64_t>(kSsmPartialBytes * elements / bytes_channel, 1, kMostSsmItemBlocks);
  space.item_blocks = std::clamp<std::int64_t>(space.items, 1, space.item_blocks);
  space.checkpoints = space.take((tokens / interval + 1) * sizes.dim * floats.states * kFloat);
  space.partial_bc = space.take(space.blocks_per_group * bytes_token);
  space.partial_channels = space.take(space.item_blocks * bytes_channel);
  return space;
}

Plan simple_scan_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const Floats floats = floats_of(spec);
  const SsmWorkspace space = simple_scan_workspace(spec, config, problem);
  const bool backward = is_backward(spec.op);
  const std::string name(name_of(spec.op));
  const auto block = static_cast<std::uint32_t>(config.values["block"]);
  const auto channel_blocks =
      static_cast<std::uint32_t>(space.blocks_per_group * std::max<std::int64_t>(sizes.groups, 1));
  const auto item_blocks = static_cast<std::uint32_t>(
      backward ? space.item_blocks : std::clamp<std::int64_t>(space.items, 1, kLongestGridY));
  Plan result;
  result.workspace_bytes = space.bytes;
  if (!backward) {
    result.launches.push_back({name, channel_blocks, item_blocks, block, 0});
    return result;
  }
  const auto sum = [&](const std::string& suffix, std::int64_t sums) {
    result.launches.push_back({name + suffix, static_cast<std::uint32_t>(ceil_div(sums, kSumBlock)), 1, kSumBlock, 0});
  };
  result.launches.push_back({name + "_checkpoints", channel_blocks, item_blocks, block, 0});
  result.launches.push_back(
      {name, channel_blocks, item_blocks, block, static_cast<std::uint32_t>(shared_bytes(spec, config))});
  if (floats.token > 0) sum("_sum_bc", sizes.batch * sizes.seqlen * sizes.groups * floats.token);
  sum("_sum_channels", sizes.dim * floats.channel);
  return result;
}

}  // namespace packjit
