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
};
constexpr Field kForwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"tile_tokens", 1, 4096, 32, {}, "consecutive tokens that one thread walks"},
    kVectorField,
    kConvertField,
};
constexpr Field kBackwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"tile_tokens", 1, 4096, 128, {}, "consecutive tokens that one thread walks"},
    {"vector", 1, 8, 4, {}, "elements that one load or store moves"},
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

constexpr int kSumBlock = 128;  // threads of the small kernels, as in the templates

std::uint32_t folded(std::int64_t blocks) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(blocks, 1, kLongestGridY));
}

KernelLaunch per_state(std::string entry, const Sizes& sizes) {
  return {std::move(entry), static_cast<std::uint32_t>(ceil_div(sizes.dim, kSumBlock)), folded(sizes.n_sequences),
          kSumBlock, 0};
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

void check_conv_pair(const Spec& spec, const Config& config) {
  check_vector(spec, config);
  if (config.values["block"] % kWarp != 0) {
    throw std::invalid_argument(
        fmt::format("block = {} must be a multiple of {} threads", config.values["block"], kWarp));
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

ConvTiling conv_tiling(const Config& config, const Sizes& sizes) {
  ConvTiling tiling;
  tiling.tiles_per_row = ceil_div(sizes.seqlen, config.values["tile_tokens"]);
  tiling.tiles = tiling.tiles_per_row * sizes.batch;
  tiling.channel_vectors = ceil_div(sizes.dim, config.values["vector"]);
  return tiling;
}

Plan conv_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const ConvTiling tiling = conv_tiling(config, sizes);
  const int block = config.values["block"];
  const bool tokens_first = spec.values["layout"] == static_cast<int>(Layout::channel_major);
  const std::int64_t fast = tokens_first ? tiling.tiles : tiling.channel_vectors;
  const std::int64_t slow = tokens_first ? tiling.channel_vectors : tiling.tiles;
  const std::string name(name_of(spec.op));

  Plan result;
  result.launches.push_back(
      {name, static_cast<std::uint32_t>(ceil_div(fast, block)), folded(slow), static_cast<std::uint32_t>(block), 0});
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
  result.launches.push_back({name + "_sum", static_cast<std::uint32_t>(ceil_div(sums, kSumBlock)), 1, kSumBlock, 0});
  result.workspace_bytes = tiling.tiles * sums * static_cast<std::int64_t>(sizeof(float));
  return result;
}

}  // namespace packjit
