#include "runtime/operator_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <tuple>

#include "generator/shared_fields.hpp"
#include "generator/ssm_pack.hpp"
#include "runtime/errors.hpp"
#include "runtime/kernel_argument.hpp"

namespace packjit {
namespace {

template <typename T>
Buffer copy_to(Device& device, const std::vector<T>& values) {
  Buffer buffer(device, std::max<std::size_t>(1, values.size() * sizeof(T)));
  if (!values.empty()) device.write(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

std::vector<std::uint16_t> run_index_16(const SequenceMap& map) {
  constexpr std::int32_t kLargest = 65534;
  std::vector<std::uint16_t> values;
  values.reserve(map.run_index.size());
  for (const std::int32_t index : map.run_index) {
    values.push_back(index < 0 ? std::uint16_t{65535} : static_cast<std::uint16_t>(std::min(index, kLargest)));
  }
  return values;
}

std::vector<RunBits> run_bits(const SequenceMap& map) {
  std::vector<RunBits> words((map.run_index.size() + kBitsOfWord - 1) / kBitsOfWord, RunBits{0, 0});
  for (std::size_t token = 0; token < map.run_index.size(); ++token) {
    const std::uint32_t bit = 1U << token % kBitsOfWord;
    RunBits& word = words[token / kBitsOfWord];
    if (map.run_index[token] == 0) word.starts |= bit;
    if (map.run_index[token] < 0) word.padding |= bit;
  }
  return words;
}

/// The items in the order of their first token; among those with the same one, the empty ones come first.
std::vector<SequenceItem> stretches_of(const SequenceMap& map) {
  std::vector<SequenceItem> stretches = map.items;
  std::sort(stretches.begin(), stretches.end(), [](const SequenceItem& a, const SequenceItem& b) {
    return std::tie(a.row, a.start, a.slot) < std::tie(b.row, b.start, b.slot);
  });
  return stretches;
}

/// The map must be stored as the kernels read it.
void check_storage(const Spec& spec, const Config& config, const MapShape& sequences) {
  const auto refuse = [&](const std::string& reader, MapStorage expected) {
    throw std::invalid_argument(fmt::format("{}: the map is stored as {}, but {} reads {}; build it with that storage",
                                            name_of(spec.op), kMapLabels[static_cast<std::size_t>(sequences.storage)],
                                            reader, kMapLabels[static_cast<std::size_t>(expected)]));
  };
  if (spec.values.has("map") && spec.values["map"] != static_cast<int>(sequences.storage)) {
    refuse("the Spec", static_cast<MapStorage>(spec.values["map"]));
  }
  const bool segmented = config.values.has("segments") && config.values["segments"] != 0;
  if ((spec.op == Operator::ssm_pack_bwd || segmented) && sequences.storage != MapStorage::positions) {
    refuse(segmented ? "a Config with segments = on" : "the operator", MapStorage::positions);
  }
}

bool is_activation(const TensorRule& rule) { return rule.shape == "batch seqlen dim"; }
bool is_filter(const TensorRule& rule) { return rule.name == "weight" || rule.name == "bias"; }

/// Whether the Spec has the tensor at all.
bool wanted(const Spec& spec, const TensorRule& rule) { return rule.field.empty() || spec.values[rule.field] != 0; }

/// "(batch 2, seqlen 16, dim ?)": the expected shape, as far as it is known.
std::string expected_shape(const TensorRule& rule, const Sizes& sizes) {
  std::string text;
  for (std::string_view symbol : shape_symbols(rule.shape)) {
    const std::int64_t size = sizes[symbol];
    text += fmt::format("{}{} {}", text.empty() ? "(" : ", ", symbol, size > 0 ? fmt::format("{}", size) : "?");
  }
  return text + ")";
}

void check_dtype(const Spec& spec, const TensorRule& rule, const TensorView& view) {
  const ElementType expected = element_type(spec, rule);
  if (view.type == expected) return;
  throw std::invalid_argument(fmt::format(
      "{}: tensor {} is {}, expected {}: {}", name_of(spec.op), rule.name, name_of(view.type), name_of(expected),
      rule.complex       ? "A is complex, so states and what meets them are"
      : is_filter(rule)  ? "with fp32_weights = on weight and bias are fp32, else of the dtype of x"
      : rule.always_fp32 ? "parameters, states and their gradients are fp32"
                         : "activations all have one dtype"));
}

/// Parameters, states and their gradients are read and written as dense arrays.
void check_dense(const Spec& spec, const TensorRule& rule, const TensorView& view) {
  if (rule.shape.starts_with("batch seqlen") || std::ranges::find(view.size, 0) != view.size.end()) return;
  std::int64_t dense = 1;
  for (std::size_t i = view.size.size(); i-- > 0;) {
    if (view.size[i] > 1 && view.stride[i] != dense) {
      throw std::invalid_argument(fmt::format(
          "{}: tensor {} has stride {} in dimension {}, expected {}: parameters, states and their gradients "
          "are dense; copy it first",
          name_of(spec.op), rule.name, view.stride[i], i, dense));
    }
    dense *= view.size[i];
  }
}

/// The first and the last element have to lie where addresses can reach, or the sums in a kernel overflow.
void check_offsets(const Spec& spec, const TensorRule& rule, const TensorView& view) {
  constexpr std::int64_t kReach = std::int64_t{1} << 56;  // bytes: user addresses of no machine have more bits
  const auto width = static_cast<std::int64_t>(size_of(view.type));
  std::int64_t lowest = 0, highest = 0;
  for (std::size_t i = 0; i < view.size.size(); ++i) {
    if (view.size[i] <= 1) continue;
    std::int64_t reach = 0;
    std::int64_t& side = view.stride[i] < 0 ? lowest : highest;
    if (!__builtin_mul_overflow(view.size[i] - 1, view.stride[i], &reach) &&
        !__builtin_mul_overflow(reach, width, &reach) && !__builtin_add_overflow(side, reach, &side) &&
        side <= kReach && side >= -kReach) {
      continue;
    }
    throw std::invalid_argument(
        fmt::format("{}: tensor {} has shape {} and strides {}: its elements would lie further apart than any memory "
                    "reaches",
                    name_of(spec.op), rule.name, shape_text(view.size), shape_text(view.stride)));
  }
}

/// Each element of what is written has memory of its own, as far as any two dimensions tell: a steps of one are never
/// b steps of another. The strides are known to be small enough for these products.
void check_apart(const Spec& spec, const TensorRule& rule, const TensorView& view) {
  const bool empty = std::ranges::find(view.size, 0) != view.size.end();  // the states before a single tap
  if (!rule.output || empty) return;
  bool apart = true;
  for (std::size_t i = 0; i < view.size.size(); ++i) {
    if (view.size[i] <= 1) continue;
    apart = apart && view.stride[i] != 0;
    for (std::size_t j = 0; apart && j < i; ++j) {
      const std::int64_t common = std::gcd(view.stride[i], view.stride[j]);
      const bool meet = view.size[j] > 1 && std::abs(view.stride[j] / common) < view.size[i] &&
                        std::abs(view.stride[i] / common) < view.size[j];
      apart = !meet;
    }
  }
  if (apart) return;
  throw std::invalid_argument(
      fmt::format("{}: tensor {} has shape {} and strides {}: the call writes it, and several of its elements share "
                  "memory (an expanded tensor's do); give each element memory of its own",
                  name_of(spec.op), rule.name, shape_text(view.size), shape_text(view.stride)));
}

/// Checkpoints are moved by accesses of 16 bytes.
void check_aligned(const Spec& spec, const TensorRule& rule, const TensorView& view) {
  constexpr std::uintptr_t kAlignment = 16;
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(view.data) % kAlignment;
  if (rule.name != "checkpoints" || past == 0) return;
  throw std::invalid_argument(
      fmt::format("{}: tensor checkpoints begins {} bytes past a multiple of {}; give it memory of its own",
                  name_of(spec.op), past, kAlignment));
}

/// Checks one tensor's shape and learns the sizes that were not known.
void bind_shape(const Spec& spec, const TensorRule& rule, const TensorView& view, Sizes& sizes) {
  const std::vector<std::string_view> symbols = shape_symbols(rule.shape);
  bool fits = view.size.size() == symbols.size() && view.stride.size() == symbols.size();
  for (std::size_t i = 0; fits && i < symbols.size(); ++i) {
    std::int64_t& size = sizes[symbols[i]];
    // n_sequences and history are known from the start and may be 0; the others are at least 1.
    const bool known = size != 0 || symbols[i] == "n_sequences" || symbols[i] == "history";
    if (!known) size = view.size[i];
    fits = size == view.size[i] && (known || size > 0);
    if (symbols[i] == "conv_width" && !known) sizes.history = size - 1;
  }
  if (fits) return;
  throw std::invalid_argument(fmt::format("{}: tensor {} has shape {}, expected {}", name_of(spec.op), rule.name,
                                          shape_text(view.size), expected_shape(rule, sizes)));
}

bool divisible(std::int64_t value, std::int64_t by) { return value % by == 0; }

bool fits_vector(const Spec& spec, const TensorViews& tensors, int vector) {
  for (const TensorRule& rule : tensor_rules(spec.op)) {
    const auto it = tensors.find(rule.name);
    if (it == tensors.end() || !(is_activation(rule) || is_filter(rule))) continue;
    const TensorView& view = it->second;
    // Weights of fp32 beside half activations are moved by several accesses.
    const auto bytes = std::min<std::uintptr_t>(vector * size_of(view.type), kLongestAccess);
    if (reinterpret_cast<std::uintptr_t>(view.data) % bytes != 0) return false;
    if (is_filter(rule)) continue;
    if (!divisible(view.size[2], vector)) return false;
    if (view.size[0] > 1 && !divisible(view.stride[0], vector)) return false;
    if (view.size[1] > 1 && !divisible(view.stride[1], vector)) return false;
  }
  const auto b = tensors.find("B");
  const auto u = tensors.find("u");
  // A block's channels belong to one group, and so must those of one access.
  return b == tensors.end() || u == tensors.end() || b->second.size.size() != 4 || b->second.size[2] == 0 ||
         divisible(u->second.size[2] / b->second.size[2], vector);
}

/// Whether the stride that a layout says is 1 is so in all activations. Strides of size-1 dimensions do not count.
bool keeps_layout(const Spec& spec, const TensorViews& tensors, Layout layout) {
  if (layout == Layout::strided) return true;
  const std::size_t dimension = layout == Layout::token_major ? 2 : 1;
  for (const TensorRule& rule : tensor_rules(spec.op)) {
    const auto it = tensors.find(rule.name);
    if (it == tensors.end() || !is_activation(rule) || it->second.size.size() != 3) continue;
    if (it->second.stride[dimension] != 1 && it->second.size[dimension] != 1) return false;
  }
  return true;
}

Layout layout_of(const Spec& spec, const TensorViews& tensors) {
  for (const Layout layout : {Layout::token_major, Layout::channel_major}) {
    if (keeps_layout(spec, tensors, layout)) return layout;
  }
  return Layout::strided;
}

/// A Spec or Config that promises more than the tensors keep: they would be read wrongly.
void check_promises(const Spec& spec, const Config& config, const TensorViews& tensors) {
  Spec fitting = spec;
  Config widest = config;
  specialise(fitting, widest, tensors);
  const bool layout_holds = keeps_layout(spec, tensors, static_cast<Layout>(spec.values["layout"]));
  const bool groups_hold = !spec.values.has("groups") || spec.values["groups"] >= fitting.values["groups"];
  if (layout_holds && groups_hold &&
      (config.values["vector"] == 1 || fits_vector(spec, tensors, config.values["vector"]))) {
    return;
  }
  throw std::invalid_argument(fmt::format(
      "{}: the call has {} and vector={}, but the tensors allow {} and vector={}; specialise() finds what fits",
      name_of(spec.op), spec.values.text(), config.values["vector"], fitting.values.text(), widest.values["vector"]));
}

}  // namespace

MapShape shape_of(const MapLimits& limits, MapStorage storage) {
  const std::int64_t items = most_items(limits.batch, limits.max_sequences);
  return {storage,       limits.batch,
          limits.seqlen, limits.max_sequences,
          items,         items + limits.batch * limits.seqlen / SEGMENT_TOKENS};
}

MappedSequences::MappedSequences(Device& device, const SequenceMap& map, MapStorage map_storage)
    : MapShape{map_storage,
               map.batch,
               map.seqlen,
               map.n_sequences,
               static_cast<std::int64_t>(map.items.size()),
               static_cast<std::int64_t>(map.segments.size())},
      item_list(copy_to(device, map.items)),
      segment_list(copy_to(device, map.segments)) {
  if (storage == MapStorage::positions) {
    run_index = copy_to(device, map.run_index);
    slot = copy_to(device, map.slot);
  } else if (storage == MapStorage::positions16) {
    run_index = copy_to(device, run_index_16(map));
  } else if (storage == MapStorage::bits) {
    run_index = copy_to(device, run_bits(map));
  }
  const std::vector<SequenceItem> in_order = stretches_of(map);
  stretches = copy_to(device, in_order);
  summary = copy_to(device, std::vector{MapSummary{static_cast<int>(map.items.size()),
                                                   static_cast<int>(map.segments.size()),
                                                   static_cast<std::int64_t>(in_order.size()),
                                                   map.n_sequences,
                                                   {}}});
}

MappedSequences::MappedSequences(Device& device, const MapLimits& limits, MapStorage map_storage)
    : MapShape(shape_of(limits, map_storage)),
      item_list(device, static_cast<std::size_t>(items) * sizeof(SequenceItem)),
      segment_list(device, static_cast<std::size_t>(segments) * sizeof(SequenceItem)),
      stretches(device, static_cast<std::size_t>(items) * sizeof(SequenceItem)),
      summary(copy_to(device, std::vector{MapSummary{}})) {
  const std::int64_t bytes = run_index_bytes(storage, batch * seqlen);
  if (bytes > 0) run_index = Buffer(device, static_cast<std::size_t>(bytes));
  if (storage == MapStorage::positions) slot = Buffer(device, static_cast<std::size_t>(bytes));
}

MapStorage storage_of(const Spec& spec) {
  return spec.values.has("map") ? static_cast<MapStorage>(spec.values["map"]) : MapStorage::positions;
}

Sizes bind_sizes(const Spec& spec, const TensorViews& tensors, std::int64_t batch, std::int64_t seqlen,
                 std::int64_t n_sequences) {
  Sizes sizes;
  sizes.batch = batch;
  sizes.seqlen = seqlen;
  sizes.n_sequences = n_sequences;
  for (std::string_view field : {"d_state", "conv_width"}) {
    if (spec.values.has(field)) sizes[field] = spec.values[field];
  }
  sizes.history = std::max<std::int64_t>(sizes.conv_width - 1, 0);
  sizes.state_reals = 2 * sizes.d_state;
  sizes.n_checkpoints = ssm_checkpoints(sizes);
  const std::vector<TensorRule> all_rules = tensor_rules(spec);
  for (const auto& entry : tensors) {
    const std::string& name = entry.first;
    const auto rule = std::ranges::find(all_rules, name, &TensorRule::name);
    if (rule == all_rules.end() || !wanted(spec, *rule)) {
      throw std::invalid_argument(fmt::format("{}: tensor {} was given, but {}", name_of(spec.op), name,
                                              rule == all_rules.end()
                                                  ? "the operator has none of that name"
                                                  : fmt::format("its options have {} = off", rule->field)));
    }
  }
  for (const TensorRule& rule : all_rules) {
    if (!wanted(spec, rule)) continue;
    const auto it = tensors.find(rule.name);
    if (it == tensors.end()) {
      throw std::invalid_argument(fmt::format("{}: tensor {} is missing, expected {}", name_of(spec.op), rule.name,
                                              expected_shape(rule, sizes)));
    }
    bind_shape(spec, rule, it->second, sizes);
    check_dtype(spec, rule, it->second);
    check_offsets(spec, rule, it->second);
    check_apart(spec, rule, it->second);
    check_dense(spec, rule, it->second);
    check_aligned(spec, rule, it->second);
  }
  if (!is_scan(spec.op)) return sizes;
  if (sizes.groups == 0) sizes.groups = 1;  // B and C are both constant
  if (!divisible(sizes.dim, sizes.groups)) {
    throw std::invalid_argument(fmt::format("{}: dim {} is not a multiple of the {} groups of B and C",
                                            name_of(spec.op), sizes.dim, sizes.groups));
  }
  return sizes;
}

void specialise(Spec& spec, Config& config, const TensorViews& tensors) {
  const Layout layout = layout_of(spec, tensors);
  spec.values.set("layout", static_cast<int>(layout));
  for (const char* name : {"B", "C"}) {
    const auto it = tensors.find(name);
    if (it != tensors.end() && it->second.size.size() == 4) spec.values.set("groups", it->second.size[2] > 1 ? 1 : 0);
  }
  int vector = layout == Layout::token_major ? config.values["vector"] : 1;
  while (vector > 1 && !fits_vector(spec, tensors, vector)) vector /= 2;
  config.values.set("vector", vector);
}

CheckedCall check_call(const DeviceInfo& device, const Spec& spec, const Config& config, const TensorViews& tensors,
                       const MapShape& map) {
  Problem problem;
  problem.sizes = bind_sizes(spec, tensors, map.batch, map.seqlen, map.n_sequences);
  problem.items = map.items;
  problem.segments = map.segments;
  if (problem.sizes.batch * problem.sizes.seqlen == 0) {
    throw std::invalid_argument(
        fmt::format("{}: there are no tokens: batch {}, seqlen {}", name_of(spec.op), map.batch, map.seqlen));
  }
  check_storage(spec, config, map);
  check_promises(spec, config, tensors);
  CheckedCall call{spec, config, problem, plan(spec, config, problem)};
  for (const KernelLaunch& launch : call.plan.launches) {
    if (launch.shared_bytes > device.shared_bytes_per_block) {
      throw std::invalid_argument(
          fmt::format("{} with config {}: a block needs {} bytes of shared memory, and {} has {}", launch.entry,
                      config.values.text(), launch.shared_bytes, device.name, device.shared_bytes_per_block));
    }
  }
  return call;
}

void run_operator(Device& device, const Spec& spec, const Config& config, const TensorViews& tensors,
                  const MappedSequences& sequences, Buffer& workspace, const Module* module) {
  const CheckedCall call = check_call(device.info(), spec, config, tensors, sequences);
  const Plan& launches = call.plan;
  if (static_cast<std::int64_t>(workspace.size()) < launches.workspace_bytes) {
    workspace = Buffer();  // first free, then take
    workspace = Buffer(device, static_cast<std::size_t>(launches.workspace_bytes));
  }
  std::shared_ptr<const Module> loaded;
  if (module == nullptr) {
    loaded = device.load(spec, config);
    module = loaded.get();
  }
  const KernelArgument argument =
      ArgumentForm(spec, config, call.problem, tensors).with(tensors, sequences, workspace.data());
  for (const KernelLaunch& launch : launches.launches) device.launch(*module, launch, argument.bytes());
}

}  // namespace packjit
