#include "generator/conv1d_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace packjit {
namespace {

constexpr std::string_view kActivationLabels[] = {"none", "silu"};

constexpr Field kSpecFields[] = {
    kDtypeField,
    {"conv_width", 1, 16, 4, {}, "taps"},
    {"bias", 0, 1, 1, kSwitch, "a bias is added"},
    {"activation", 0, 1, 1, kActivationLabels, "applied to the sum"},
    {"initial_states", 0, 1, 0, kSwitch, "each sequence begins with given history"},
    {"final_states", 0, 1, 0, kSwitch, "the last inputs of each sequence are an output"},
    kLayoutField,
    kMapField,
    {"fp32_weights", 0, 1, 0, kSwitch, "weight and bias are fp32, whatever the dtype", true},
};
constexpr Field kBlockField = {"block", 32, 1024, 128, {}, "threads of a block"};
constexpr Field kLoadTokensField = {"load_tokens", 1, 16, 4, {}, "tokens that a thread loads together"};
constexpr Field kPrefetchField = {"prefetch", 0, 1, 1, kSwitch, "loads the next tokens before working on these"};
constexpr Field kMinBlocksField = {
    "min_blocks", 0, 16, 0, {}, "blocks that a multiprocessor must be able to hold; 0 leaves it to the compiler"};
constexpr Field kForwardConfig[] = {
    kBlockField,
    {"block_tiles", 1, 1024, 1, {}, "tiles of a block; its other threads take other channels"},
    {"tile_tokens", 1, 4096, 64, {}, "consecutive tokens that one thread walks"},
    kLoadTokensField,
    kPrefetchField,
    kVectorField,
    kMinBlocksField,
    kConvertField,
};
constexpr Field kBackwardConfig[] = {
    kBlockField,
    {"block_tiles", 1, 1024, 4, {}, "tiles of a block, whose sums are added up there"},
    {"tile_tokens", 1, 4096, 512, {}, "consecutive tokens that one thread walks"},
    kLoadTokensField,
    kPrefetchField,
    {"stages", 0, 8, 0, {}, "batches of loaded tokens under way to shared memory; 0: to registers, as prefetch says"},
    {"early_sum", 0, 1, 0, kSwitch, "the last kernel starts while the others end, as sm_90 and later can"},
    {"vector", 1, 8, 4, {}, "elements that one load or store moves"},
    kMinBlocksField,
    kConvertField,
};
constexpr TensorRule kForwardTensors[] = {
    {"x", "batch seqlen dim", false, false, ""},
    {"weight", "dim conv_width", false, false, ""},
    {"bias", "dim", false, false, "bias"},
    {"initial_states", "n_sequences dim history", false, false, "initial_states"},
    {"out", "batch seqlen dim", false, true, ""},
    {"final_states", "n_sequences dim history", false, true, "final_states"},
};
constexpr TensorRule kBackwardTensors[] = {
    {"x", "batch seqlen dim", false, false, ""},
    {"weight", "dim conv_width", false, false, ""},
    {"bias", "dim", false, false, "bias"},
    {"initial_states", "n_sequences dim history", false, false, "initial_states"},
    {"dout", "batch seqlen dim", false, false, ""},
    {"dfinal_states", "n_sequences dim history", false, false, "final_states"},
    {"dx", "batch seqlen dim", false, true, ""},
    {"dweight", "dim conv_width", true, true, ""},
    {"dbias", "dim", true, true, "bias"},
    {"dinitial_states", "n_sequences dim history", false, true, "initial_states"},
};

// As in the templates: threads of the kernels for states; sums of a block of the backward's last kernel, threads a sum.
constexpr int kStateBlock = 128, kSumColumns = 32, kSumSlices = 8;

std::uint32_t folded(std::int64_t blocks) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(blocks, 1, kLongestGridY));
}

constexpr int kMostSharedBytes = 64 * 1024;  // what every architecture gives a block

/// Of a block of the backward: x and dout of the batches under way, and then in their place what its tiles exchange,
/// the sums of each thread.
int shared_bytes(const Spec& spec, const Config& config) {
  constexpr int kSum = sizeof(float);
  const int vector = config.values["vector"];
  const int pack = vector * static_cast<int>(size_of(static_cast<Dtype>(spec.values["dtype"])));
  const int batches = config.values["stages"] * 2 * config.values["load_tokens"] * pack;
  const int sums = config.values["block_tiles"] > 1 ? (spec.values["conv_width"] + 1) * vector * kSum : 0;
  return std::max(batches, sums) * config.values["block"];
}

KernelLaunch per_state(std::string entry, const Sizes& sizes) {
  return {std::move(entry), static_cast<std::uint32_t>(ceil_div(sizes.dim, kStateBlock)), folded(sizes.n_sequences),
          kStateBlock, 0};
}

}  // namespace

std::span<const Field> conv_spec_fields() { return kSpecFields; }

std::span<const Field> conv_config_fields(bool backward) {
  if (backward) return kBackwardConfig;
  return kForwardConfig;
}

std::span<const TensorRule> conv_tensor_rules(bool backward) {
  if (backward) return kBackwardTensors;
  return kForwardTensors;
}

void conv_adapt_rules(const Spec& spec, std::span<TensorRule> rules) {
  for (TensorRule& rule : rules) {
    if (rule.name == "weight" || rule.name == "bias") rule.always_fp32 = spec.values["fp32_weights"] != 0;
  }
}

void check_conv_pair(const Spec& spec, const Config& config) {
  check_vector(spec, config);
  if (config.values["block"] % kWarp != 0) {
    throw std::invalid_argument(
        fmt::format("block = {} must be a multiple of {} threads", config.values["block"], kWarp));
  }
  check_min_blocks(config);
  require_power_of_two(config, "block_tiles");
  if (config.values["block"] % config.values["block_tiles"] != 0) {
    throw std::invalid_argument(fmt::format("block_tiles = {} must divide block = {}; lower block_tiles",
                                            config.values["block_tiles"], config.values["block"]));
  }
  if (is_backward(spec.op) && shared_bytes(spec, config) > kMostSharedBytes) {
    throw std::invalid_argument(fmt::format(
        "block = {} with vector = {}, conv_width = {}, stages = {}, load_tokens = {} and block_tiles = {} needs {} "
        "bytes of shared memory; at most {} fit, so lower block or stages, or set block_tiles to 1",
        config.values["block"], config.values["vector"], spec.values["conv_width"], config.values["stages"],
        config.values["load_tokens"], config.values["block_tiles"], shared_bytes(spec, config), kMostSharedBytes));
  }
  // Each tap keeps an input, a weight and, backward, two sums in registers for every element of the vector.
  const int held = (is_backward(spec.op) ? 4 : 2) * spec.values["conv_width"] * config.values["vector"];
  constexpr int kMostHeld = 160;
  if (held > kMostHeld) {
    throw std::invalid_argument(
        fmt::format("conv_width = {} with vector = {} keeps {} values a thread in registers; at most {} fit, so lower "
                    "vector",
                    spec.values["conv_width"], config.values["vector"], held, kMostHeld));
  }
}

std::vector<FieldChoices> conv_choices(const Spec& spec) {
  // Neighbouring threads take neighbouring tokens where those lie side by side: so many tiles as a warp has threads.
  const bool tokens_first = spec.values["layout"] == static_cast<int>(Layout::channel_major);
  std::vector<FieldChoices> choices = {{"block", {64, 128, 256}},
                                       {"block_tiles", {1, 2, 4}},
                                       {"tile_tokens", {16, 32, 64, 128, 256}},
                                       {"load_tokens", {4, 8}},
                                       {"prefetch", {0, 1}},
                                       {"vector", {1, 2, 4, 8}},
                                       {"min_blocks", {0, 4, 8, 16}},
                                       {"convert", {1}}};
  if (tokens_first) choices[1].values = {kWarp / 2, kWarp, 2 * kWarp};
  std::erase_if(choices[5].values, [&](int vector) { return vector > longest_vector(spec); });
  if (!is_backward(spec.op)) return choices;
  choices[2].values.push_back(512);
  choices[4].values = {1};
  choices[6].values = {0};
  choices.push_back({"stages", {0, 2, 4}});
  choices.push_back({"early_sum", {1}});  // ends sooner wherever launches can begin early
  return choices;
}

bool conv_worth_trying(const Spec& spec, const Config& config) {
  // Wide filters leave registers for few channels a thread; otherwise short accesses only cost.
  const int vector = config.values["vector"], widest = longest_vector(spec);
  const int narrow = spec.values["conv_width"] <= 4 ? 4 : spec.values["conv_width"] <= 8 ? 2 : 1;
  if (vector < std::min(narrow, widest)) return false;
  // A tile begins with conv_width - 1 tokens of the one before it.
  if (config.values["tile_tokens"] < config.values["load_tokens"] ||
      config.values["tile_tokens"] < spec.values["conv_width"]) {
    return false;
  }
  if (is_backward(spec.op)) return true;
  // The forward's blocks share nothing between tiles where channels lie side by side: one tile, or enough of them for
  // the few vectors of a small dim.
  constexpr int kManyTiles = 4;
  if (spec.values["layout"] != static_cast<int>(Layout::channel_major) && config.values["block_tiles"] != 1 &&
      config.values["block_tiles"] != kManyTiles) {
    return false;
  }
  const int held = config.values["block"] * config.values["min_blocks"];
  constexpr int kHeldThreads = 1024;  // with 64 registers each
  return held == 0 || held == kHeldThreads;
}

ConvGrid conv_grid(const Config& config, const Sizes& sizes) {
  const int block_tiles = config.values["block_tiles"];
  const int block_channels = config.values["block"] / block_tiles * config.values["vector"];
  const std::int64_t tiles = ceil_div(sizes.seqlen, config.values["tile_tokens"]) * sizes.batch;
  return {ceil_div(tiles, block_tiles), ceil_div(sizes.dim, block_channels)};
}

Plan conv_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const ConvGrid grid = conv_grid(config, sizes);
  const bool tokens_first = spec.values["layout"] == static_cast<int>(Layout::channel_major);
  const std::int64_t fast = tokens_first ? grid.tile_groups : grid.channel_groups;
  const std::int64_t slow = tokens_first ? grid.channel_groups : grid.tile_groups;
  const std::string name(name_of(spec.op));

  Plan result;
  result.launches.push_back({name, static_cast<std::uint32_t>(fast), folded(slow),
                             static_cast<std::uint32_t>(config.values["block"]),
                             is_backward(spec.op) ? static_cast<std::uint32_t>(shared_bytes(spec, config)) : 0});
  const bool has_history = spec.values["conv_width"] > 1;
  if (!is_backward(spec.op)) {
    if (spec.values["final_states"] != 0 && has_history) {
      result.launches.push_back(per_state(name + "_final_states", sizes));
    }
    return result;
  }
  if (spec.values["initial_states"] != 0 && has_history) {
    result.launches.push_back(per_state(name + "_initial_states", sizes));
  }
  const std::int64_t sums = sizes.dim * (spec.values["conv_width"] + 1);
  constexpr int kSumBlock = kSumColumns * kSumSlices;
  result.launches.push_back({name + "_sum", static_cast<std::uint32_t>(ceil_div(sums, kSumColumns)), 1, kSumBlock,
                             kSumBlock * sizeof(float), config.values["early_sum"] != 0});
  result.workspace_bytes = grid.tile_groups * sums * static_cast<std::int64_t>(sizeof(float));
  return result;
}

}  // namespace packjit
