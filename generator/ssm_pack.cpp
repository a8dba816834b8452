#include "generator/ssm_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "generator/ssm_simple.hpp"
#include "templates/device/sequence_map.cuh"

namespace packjit {
namespace {

constexpr std::string_view kGroupLabels[] = {"one", "many"};
constexpr std::string_view kSumLabels[] = {"registers", "tensor", "split"};
constexpr std::string_view kCopyLabels[] = {"plain", "async"};

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
    {"checkpoints", 0, 1, 0, kSwitch,
     "the forward stores states inside sequences, so that the backward need not recompute them"},
    kLayoutField,
    {"constant_B", 0, 1, 0, kSwitch, "B is the same for all tokens, one for each channel", true},
    {"constant_C", 0, 1, 0, kSwitch, "C is the same for all tokens, one for each channel", true},
    {"complex_A", 0, 1, 0, kSwitch, "A, B, C and the states are complex numbers", true},
};
constexpr Field kForwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"lanes", 1, 32, 1, {}, "threads of a warp that share a channel's states"},
    {"tile_tokens", 1, 256, 16, {}, "tokens staged in shared memory at a time"},
    {"vector", 1, 8, 2, {}, "elements that one load or store moves"},
    {"segments", 0, 1, 0, kSwitch,
     "long sequences are cut into segments that run side by side, at the price of a second pass"},
    {"copies", 0, 1, 1, kCopyLabels, "whether the next tile's inputs are copied while the present one is computed"},
    {"min_blocks", 1, 16, 4, {}, "blocks that a multiprocessor must be able to hold"},
    kConvertField,
};
constexpr Field kBackwardConfig[] = {
    {"block", 32, 1024, 128, {}, "threads of a block"},
    {"lanes", 1, 32, 1, {}, "threads of a warp that share a channel's states"},
    {"tile_tokens", 1, 256, 8, {}, "tokens staged in shared memory at a time"},
    {"checkpoint_tokens", 1, 512, 8, {}, "tokens between two state checkpoints"},
    {"step_tokens", 1, 16, 2, {}, "tokens whose states and decays a thread holds in registers at a time"},
    {"channel_sums", 0, 2, 1, kSumLabels,
     "what sums dB and dC over channels: shuffles, tensor cores with addends cut to tf32, or split in two"},
    {"vector", 1, 8, 2, {}, "elements that one load or store moves"},
    {"segments", 0, 1, 0, kSwitch,
     "long sequences are cut into segments that run side by side, at the price of a second pass"},
    {"copies", 0, 1, 1, kCopyLabels, "whether the next tile's inputs are copied while the present one is computed"},
    {"min_blocks", 1, 16, 4, {}, "blocks that a multiprocessor must be able to hold"},
    kConvertField,
};
constexpr std::string_view kOfTokens = "batch seqlen groups d_state";
constexpr TensorRule kForwardTensors[] = {
    {"u", "batch seqlen dim", false, false, ""},
    {"delta", "batch seqlen dim", false, false, ""},
    {"A", "dim d_state", true, false, ""},
    {"B", kOfTokens, false, false, ""},
    {"C", kOfTokens, false, false, ""},
    {"D", "dim", true, false, "D"},
    {"z", "batch seqlen dim", false, false, "z"},
    {"delta_bias", "dim", true, false, "delta_bias"},
    {"initial_states", "n_sequences dim d_state", true, false, "initial_states"},
    {"out", "batch seqlen dim", false, true, ""},
    {"final_states", "n_sequences dim d_state", true, true, "final_states"},
    {"checkpoints", "n_checkpoints dim d_state", true, true, "checkpoints"},
};
constexpr TensorRule kBackwardTensors[] = {
    {"u", "batch seqlen dim", false, false, ""},
    {"delta", "batch seqlen dim", false, false, ""},
    {"A", "dim d_state", true, false, ""},
    {"B", kOfTokens, false, false, ""},
    {"C", kOfTokens, false, false, ""},
    {"D", "dim", true, false, "D"},
    {"z", "batch seqlen dim", false, false, "z"},
    {"delta_bias", "dim", true, false, "delta_bias"},
    {"initial_states", "n_sequences dim d_state", true, false, "initial_states"},
    {"dout", "batch seqlen dim", false, false, ""},
    {"dfinal_states", "n_sequences dim d_state", true, false, "final_states"},
    {"checkpoints", "n_checkpoints dim d_state", true, false, "checkpoints"},
    {"du", "batch seqlen dim", false, true, ""},
    {"ddelta", "batch seqlen dim", false, true, ""},
    {"dA", "dim d_state", true, true, ""},
    {"dB", kOfTokens, false, true, ""},
    {"dC", kOfTokens, false, true, ""},
    {"dD", "dim", true, true, "D"},
    {"dz", "batch seqlen dim", false, true, "z"},
    {"ddelta_bias", "dim", true, true, "delta_bias"},
    {"dinitial_states", "n_sequences dim d_state", true, true, "initial_states"},
};

constexpr int kSumBlock = 128;  // threads of the summing kernels, as in the template
constexpr std::int64_t kFloat = sizeof(float);

struct Shape {
  std::int64_t states;    // of one lane
  std::int64_t padded;    // states of a channel with the unused ones of its last lane
  std::int64_t channels;  // of one block
};

Shape shape_of(const Spec& spec, const Config& config) {
  const std::int64_t lanes = config.values["lanes"];
  const std::int64_t states = ceil_div(spec.values["d_state"], lanes);
  return {states, states * lanes, config.values["block"] / lanes};
}

/// Dynamic shared memory of a block, in bytes, as the templates lay it out.
struct SharedBytes {
  std::uint32_t forward;  // of kernels that run the scan forward only
  std::uint32_t
      gradient_segments;  // of ssm_pack_bwd_gradient_segments, which needs the first arrays of the backward only
  std::uint32_t backward;
};

SharedBytes shared_bytes(const Spec& spec, const Config& config) {
  const Shape shape = shape_of(spec, config);
  const std::int64_t tile = config.values["tile_tokens"];
  const std::int64_t block = config.values["block"];
  // Each array begins at a multiple of 16 bytes.
  const auto rounded = [](std::int64_t floats) { return ceil_div(floats, 4) * 4; };
  const auto bytes = [](std::int64_t floats) { return static_cast<std::uint32_t>(kFloat * floats); };
  const std::int64_t element = static_cast<std::int64_t>(size_of(static_cast<Dtype>(spec.values["dtype"])));
  const auto elements = [&](std::int64_t count) { return rounded(ceil_div(count * element, kFloat)); };
  const std::int64_t d_state = spec.values["d_state"];
  // Activations with a gap after each row, B and C as fp32, and what is fetched of those: half of the block takes each.
  const bool rows_are_channels = spec.values["layout"] == static_cast<int>(Layout::channel_major);
  const std::int64_t gap = config.values["lanes"] > 1 ? config.values["vector"] : 0;
  const std::int64_t room = rows_are_channels ? shape.channels * (tile + 1) : tile * (shape.channels + gap);
  const std::int64_t states = rounded(tile * shape.padded);
  const std::int64_t pack = d_state % 4 == 0 && shape.padded == d_state ? 4 : 1;
  const std::int64_t fetched = ceil_div(tile * shape.padded / pack, block / 2) * block * pack;
  const auto inputs = [&](std::int64_t count) {
    return elements(2 * count * ceil_div(room, 8) * 8) + 4 * states + elements(fetched);
  };
  const std::int64_t gated = spec.values["z"];
  const std::uint32_t forward = bytes(inputs(2 + gated));
  if (!is_backward(spec.op)) return {forward, 0, 0};
  const std::int64_t step = config.values["step_tokens"];
  std::int64_t floats = inputs(3 + gated) + rounded(tile * shape.channels * 2);  // with dt and its derivative
  const std::uint32_t gradient_segments = bytes(floats);
  // Of each step a warp's states before it, then in their place its partial sums of dB and dC for each token: a row for
  // each four channels by tensor cores, one for all by shuffles.
  const std::int64_t rows = config.values.text("channel_sums") == "registers" ? 1 : kWarp / config.values["lanes"] / 4;
  const std::int64_t places = config.values["lanes"] > 1 && d_state <= 64 ? 2 : 1;
  floats += places * (block / kWarp) * (tile / step) * std::max(shape.states * kWarp, step * rows * 2 * shape.padded);
  return {forward, gradient_segments, bytes(floats)};
}

std::int64_t blocks_per_group(const Spec& spec, const Config& config, const Sizes& sizes) {
  return ceil_div(sizes.dim / std::max<std::int64_t>(sizes.groups, 1), shape_of(spec, config).channels);
}

}  // namespace

std::int64_t SsmWorkspace::take(std::int64_t size) {
  constexpr std::int64_t kAlignment = 256;  // bytes
  const std::int64_t begin = bytes;
  bytes += ceil_div(size, kAlignment) * kAlignment;
  return begin;
}

std::span<const Field> ssm_spec_fields() { return kSpecFields; }

std::span<const Field> ssm_config_fields(bool backward) {
  if (backward) return kBackwardConfig;
  return kForwardConfig;
}

std::span<const TensorRule> ssm_tensor_rules(bool backward) {
  if (backward) return kBackwardTensors;
  return kForwardTensors;
}

void ssm_adapt_rules(const Spec& spec, std::span<TensorRule> rules) {
  const bool complex = spec.values["complex_A"] != 0;
  for (TensorRule& rule : rules) {
    for (const auto& [field, name] : {std::pair{"constant_B", 'B'}, std::pair{"constant_C", 'C'}}) {
      if (rule.shape != kOfTokens || rule.name.back() != name || spec.values[field] == 0) continue;
      rule.shape = "dim d_state";
      rule.always_fp32 = true;
    }
    rule.complex = complex && rule.always_fp32 && rule.shape.ends_with("d_state");
    if (complex && rule.shape == kOfTokens) rule.shape = "batch seqlen groups 2*d_state";
  }
}

void check_ssm_pair(const Spec& spec, const Config& config) {
  if (is_simple_scan(spec)) return check_simple_scan_pair(spec, config);
  check_vector(spec, config);
  for (std::string_view field : {"block", "lanes", "tile_tokens"}) require_power_of_two(config, field);
  const Shape shape = shape_of(spec, config);
  // The backward holds the decays of a step's tokens, and the states before them.
  const bool backward = is_backward(spec.op);
  const int held = static_cast<int>(shape.states) * (backward ? config.values["step_tokens"] : 1);
  const int most_held = backward ? 64 : 16;
  if (held > most_held) {
    throw std::invalid_argument(fmt::format(
        "d_state = {} over {} lanes keeps {} values a thread in registers{}; at most {} fit, so raise lanes{}",
        spec.values["d_state"], config.values["lanes"], held,
        backward ? fmt::format(" (decays of {} states and {} tokens, and as many states)", shape.states,
                               config.values["step_tokens"])
                 : "",
        most_held, backward ? " or lower step_tokens" : ""));
  }
  check_min_blocks(config);
  if (config.values["vector"] > shape.channels) {
    throw std::invalid_argument(
        fmt::format("vector = {} is more than the {} channels of a block", config.values["vector"], shape.channels));
  }
  if (config.values["segments"] != 0 && config.values["tile_tokens"] > SEGMENT_TOKENS / 16) {
    throw std::invalid_argument(fmt::format("segments of {} tokens need tile_tokens of at most {}, not {}",
                                            SEGMENT_TOKENS, SEGMENT_TOKENS / 16, config.values["tile_tokens"]));
  }
  if (is_backward(spec.op)) {
    for (std::string_view field : {"step_tokens", "checkpoint_tokens"}) {
      require_power_of_two(config, field);
    }
    const int interval = config.values["checkpoint_tokens"];
    const int stored = checkpoint_interval(spec.values["d_state"]);
    if (spec.values["checkpoints"] != 0 && interval != stored) {
      throw std::invalid_argument(fmt::format(
          "the forward stores checkpoints every {} tokens at d_state = {}, so checkpoint_tokens must be as many, "
          "not {}",
          stored, spec.values["d_state"], interval));
    }
    // States are known between groups of the forward, and needed before steps.
    constexpr int kForwardGroup = 8;
    const int least = std::max(std::min(kForwardGroup, config.values["tile_tokens"]), config.values["step_tokens"]);
    if (interval < least) {
      throw std::invalid_argument(
          fmt::format("checkpoint_tokens = {} must be at least {} with tile_tokens = {} and step_tokens = {}", interval,
                      least, config.values["tile_tokens"], config.values["step_tokens"]));
    }
    if (config.values["segments"] != 0 && SEGMENT_TOKENS % interval != 0) {
      throw std::invalid_argument(fmt::format("segments of {} tokens must be a multiple of the {} between checkpoints",
                                              SEGMENT_TOKENS, interval));
    }
    const std::string sums = config.values.text("channel_sums");
    if (sums == "tensor" && static_cast<Dtype>(spec.values["dtype"]) != Dtype::bf16) {
      throw std::invalid_argument(
          fmt::format("channel_sums = tensor cuts the addends of dB and dC to tf32, which the bounds of {} do not "
                      "allow; take channel_sums = split or registers",
                      spec.values.text("dtype")));
    }
    constexpr int kMostLanes = 8;
    if (sums != "registers" && config.values["lanes"] > kMostLanes) {
      throw std::invalid_argument(
          fmt::format("channel_sums = {} adds up groups of four channels of a warp, which lanes = {} leaves too few "
                      "of; at most {} lanes, or channel_sums = registers",
                      sums, config.values["lanes"], kMostLanes));
    }
    if (config.values["step_tokens"] > config.values["tile_tokens"]) {
      throw std::invalid_argument(fmt::format("step_tokens = {} is more than tile_tokens = {}",
                                              config.values["step_tokens"], config.values["tile_tokens"]));
    }
  }
}

std::vector<FieldChoices> ssm_choices(const Spec& spec) {
  if (is_simple_scan(spec)) return simple_scan_choices(spec);
  const int d_state = spec.values["d_state"];
  const bool backward = is_backward(spec.op);
  std::vector<int> lanes;
  // More lanes than these do not pay for handing states about: a lane has fewer than two states, or eight of many.
  constexpr int kMostLanesOfFew = 8;
  const int most_lanes = std::min({d_state, kWarp, std::max(kMostLanesOfFew, d_state / kMostLanesOfFew)});
  for (int n = 1; n <= most_lanes; n *= 2) lanes.push_back(n);
  const int widest = longest_vector(spec);
  // Blocks of the wider Specs would not fit into shared memory with longer tiles.
  const int longest_tile = d_state > 128 ? 8 : 16;
  std::vector<FieldChoices> choices = {
      {"block", {64, 128, 256}},          {"lanes", lanes},     {"tile_tokens", {longest_tile, longest_tile / 2}},
      {"vector", {1, 2, 4, 8}},           {"segments", {0, 1}}, {"copies", {0, 1}},
      {"min_blocks", {1, 2, 3, 4, 6, 8}}, {"convert", {1}}};
  std::erase_if(choices[3].values, [&](int vector) { return vector > widest; });
  if (!backward) {
    choices[2].values = {longest_tile, 2 * longest_tile};
    return choices;
  }
  const int interval = checkpoint_interval(d_state);
  choices.push_back({"checkpoint_tokens", {interval}});
  if (spec.values["checkpoints"] == 0) choices.back().values.push_back(2 * interval);
  choices.push_back({"step_tokens", {1, 2, 4, 8, 16}});
  choices.push_back({"channel_sums", {0, 1, 2}});
  return choices;
}

bool ssm_worth_trying(const Spec& spec, const Config& config) {
  if (is_simple_scan(spec)) return true;
  const Shape shape = shape_of(spec, config);
  const bool backward = is_backward(spec.op);
  // Accesses as long as can be, the forward's also half as long so that more threads share in them; a block of few
  // channels has less. Copies that nothing hides are tried with the longest only.
  const auto channels = static_cast<int>(shape.channels);
  const int vector = config.values["vector"], widest = std::min(longest_vector(spec), channels);
  // Architectures without copies ahead have no choice there; nor have they native conversions.
  const bool async = config.values["copies"] != 0 || config.values["convert"] == 0;
  if (vector > widest || (backward || !async ? 1 : 2) * vector < widest) return false;
  // A multiprocessor has 65,536 registers: 256 threads can use no more of them, 1,024 have 64 each, and the backward
  // spills with fewer than 128.
  const int threads = config.values["block"] * config.values["min_blocks"];
  if (threads < 256 || threads > (backward ? 512 : 1024)) return false;
  if (!backward) return true;
  // Decays and states held in registers: with few of them a step does little, with many the registers are short.
  const int step = config.values["step_tokens"], tile = config.values["tile_tokens"];
  constexpr int kFewHeld = 16, kManyHeld = 32;
  const auto states = static_cast<int>(shape.states);
  if (step > tile || (states * step > kManyHeld && step > 1)) return false;
  if (states * step < kFewHeld && step < tile) return false;
  // What is slower than tf32 addends on every GPU measured so far is tried where it disturbs least: shuffles with
  // copies ahead, and for bf16 the more precise sums, which it does not need, in blocks of middle size.
  const std::string sums = config.values.text("channel_sums");
  const bool is_bf16 = spec.values["dtype"] == static_cast<int>(Dtype::bf16);
  if (is_bf16 && sums == "registers" && !async) return false;
  if (is_bf16 && sums == "split" && (!async || config.values["block"] != 128)) return false;
  // Wider intervals are there to save memory traffic, so not for tiles that are half as long.
  if (config.values["checkpoint_tokens"] == checkpoint_interval(spec.values["d_state"])) return true;
  return tile > 8 && async && (!is_bf16 || sums == "tensor");
}

int checkpoint_interval(std::int64_t d_state) {
  return d_state <= 16 ? 8 : d_state <= 128 ? 16 : d_state <= 256 ? 32 : 64;
}

std::int64_t ssm_checkpoints(const Sizes& sizes) {
  return sizes.batch * sizes.seqlen / checkpoint_interval(sizes.d_state) + 1;
}

SsmWorkspace ssm_workspace(const Spec& spec, const Config& config, const Problem& problem) {
  if (is_simple_scan(spec)) return simple_scan_workspace(spec, config, problem);
  const Sizes& sizes = problem.sizes;
  const std::int64_t tokens = sizes.batch * sizes.seqlen;
  const std::int64_t d_state = spec.values["d_state"];
  const std::int64_t states_bytes = sizes.dim * d_state * kFloat;
  const bool backward = is_backward(spec.op);
  const bool stored = spec.values["checkpoints"] != 0;
  SsmWorkspace space;
  const bool segmented = config.values["segments"] != 0;
  space.items = segmented ? problem.segments : problem.items;
  if (segmented) {
    const std::int64_t boundaries = tokens / SEGMENT_TOKENS + 1;
    const std::int64_t inside = backward && !stored ? tokens / config.values["checkpoint_tokens"] + 1 : 0;
    space.segment_dt = space.take((boundaries + inside) * sizes.dim * kFloat);
    if (!backward || !stored) space.segment_states = space.take(boundaries * states_bytes);
    if (backward) space.segment_gradients = space.take(boundaries * states_bytes);
  }
  space.blocks_per_group = blocks_per_group(spec, config, sizes);
  if (!backward) return space;
  // Partial sums stay below these bytes an element; where that allows fewer blocks, each takes more.
  const std::int64_t elements = tokens * sizes.dim;
  const std::int64_t bytes_bc = tokens * sizes.groups * 2 * d_state * kFloat;
  const std::int64_t bytes_channels = 2 * sizes.dim * (d_state + 2) * kFloat;
  space.blocks_per_group = std::clamp<std::int64_t>(kSsmPartialBytes * elements / bytes_bc, 1, space.blocks_per_group);
  space.item_blocks = std::clamp<std::int64_t>(kSsmPartialBytes * elements / bytes_channels, 1, kMostSsmItemBlocks);
  space.item_blocks = std::clamp<std::int64_t>(space.items, 1, space.item_blocks);
  const std::int64_t interval = config.values["checkpoint_tokens"];
  if (!stored) space.checkpoints = space.take((tokens / interval + 1) * states_bytes);
  space.partial_bc = space.take(space.blocks_per_group * bytes_bc);
  space.partial_channels = space.take(space.item_blocks * bytes_channels);
  return space;
}

Plan ssm_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  constexpr std::int64_t kMostChannels = std::int64_t{1}
                                         << 23;  // kernels count 2 * kMostSsmItemBlocks times as many in 32 bits
  if (sizes.dim > kMostChannels) {
    throw std::invalid_argument(
        fmt::format("{} takes at most {} channels in one call, not dim = {}; give it parts of them", name_of(spec.op),
                    kMostChannels, sizes.dim));
  }
  if (is_simple_scan(spec)) return simple_scan_plan(spec, config, problem);
  const std::string name(name_of(spec.op));
  const auto block = static_cast<std::uint32_t>(config.values["block"]);
  const SharedBytes shared = shared_bytes(spec, config);
  const SsmWorkspace space = ssm_workspace(spec, config, problem);
  const bool backward = is_backward(spec.op);
  const bool segmented = config.values["segments"] != 0;
  const bool stored = spec.values["checkpoints"] != 0;
  const std::int64_t d_state = spec.values["d_state"];
  const auto channel_blocks = static_cast<std::uint32_t>(space.blocks_per_group * sizes.groups);
  const auto item_blocks = static_cast<std::uint32_t>(
      backward ? space.item_blocks : std::clamp<std::int64_t>(space.items, 1, kLongestGridY));
  const auto walk_blocks = static_cast<std::uint32_t>(ceil_div(sizes.dim * d_state, kSumBlock));
  Plan result;
  result.workspace_bytes = space.bytes;
  const auto per_item = [&](const std::string& suffix, std::uint32_t bytes) {
    result.launches.push_back({name + suffix, channel_blocks, item_blocks, block, bytes});
  };
  const auto walk = [&](const std::string& suffix) {
    result.launches.push_back({name + suffix, walk_blocks, item_blocks, kSumBlock, 0});
  };
  const auto sum = [&](const std::string& suffix, std::int64_t sums) {
    result.launches.push_back({name + suffix, static_cast<std::uint32_t>(ceil_div(sums, kSumBlock)), 1, kSumBlock, 0});
  };
  if (!backward) {
    if (segmented) {
      per_item("_segments", shared.forward);
      walk("_boundaries");
    }
    per_item("", shared.forward);
    return result;
  }
  if (!stored) {
    per_item("_checkpoints", shared.forward);
    if (segmented) walk("_boundaries");
  }
  if (segmented) {
    per_item("_gradient_segments", shared.gradient_segments);
    walk("_gradient_boundaries");
  }
  per_item("", shared.backward);
  sum("_sum_bc", sizes.batch * sizes.seqlen * sizes.groups * 2 * d_state);
  sum("_sum_channels", sizes.dim * (d_state + 2));
  return result;
}

}  // namespace packjit
