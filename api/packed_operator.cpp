#include "api/packed_operator.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "api/operator_options.hpp"
#include "api/record_shape.hpp"
#include "generator/ssm_pack.hpp"
#include "runtime/config_choice.hpp"

namespace packjit::api {
namespace {

/// Checks the call and chooses its Config. `work` is without dim, which the tensors tell.
CheckedCall plan_call(const DeviceInfo& device, const Spec& asked, const TensorViews& views, const MapShape& map,
                      Workload work) {
  work.dim = bind_sizes(asked, views, map.batch, map.seqlen, map.n_sequences).dim;
  if (work.dim > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(fmt::format("{}: dim is {}, beyond 32 bits", name_of(asked.op), work.dim));
  }
  Spec spec = asked;
  Config config(spec.op);
  specialise(spec, config, views);  // the layout, by which the Config is chosen
  config = choose_config(spec, device, work).config;
  specialise(spec, config, views);
  return check_call(device, spec, config, views, map);
}

void check_shape(const packjit_shape& shape) {
  const std::pair<const char*, std::int64_t> kPositive[] = {{"batch", shape.batch},
                                                            {"seqlen", shape.seqlen},
                                                            {"dim", shape.dim},
                                                            {"max_sequences", shape.max_sequences},
                                                            {"max_seqlen", shape.max_seqlen}};
  for (const auto& [name, value] : kPositive) {
    if (value < 1) throw std::invalid_argument(fmt::format("packjit_shape: {} is {}, expected 1 or more", name, value));
  }
  check_limits({shape.batch, shape.seqlen, shape.max_sequences, shape.max_seqlen});
  if (shape.groups < 0 || shape.groups > shape.dim || (shape.groups > 0 && shape.dim % shape.groups != 0)) {
    throw std::invalid_argument(fmt::format("packjit_shape: groups is {}, expected 0 or a number that divides dim ({})",
                                            shape.groups, shape.dim));
  }
  if (shape.caller_workspace != 0 && shape.caller_workspace != 1) {
    throw std::invalid_argument(
        fmt::format("packjit_shape: caller_workspace is {}; expected 0 or 1", shape.caller_workspace));
  }
  if (shape.layout < PACKJIT_TOKEN_MAJOR || shape.layout > PACKJIT_STRIDED) {
    throw std::invalid_argument(
        fmt::format("packjit_shape: layout is {}; expected PACKJIT_TOKEN_MAJOR (0), PACKJIT_CHANNEL_MAJOR (1) or "
                    "PACKJIT_STRIDED (2)",
                    shape.layout));
  }
}

Sizes sizes_of(const Spec& spec, const packjit_shape& shape) {
  Sizes sizes;
  sizes.batch = shape.batch;
  sizes.seqlen = shape.seqlen;
  sizes.dim = shape.dim;
  sizes.groups = std::max<std::int64_t>(shape.groups, 1);
  sizes.n_sequences = shape.max_sequences;
  for (std::string_view field : {"d_state", "conv_width"}) {
    if (spec.values.has(field)) sizes[field] = spec.values[field];
  }
  sizes.history = std::max<std::int64_t>(sizes.conv_width - 1, 0);
  sizes.state_reals = 2 * sizes.d_state;
  sizes.n_checkpoints = ssm_checkpoints(sizes);
  return sizes;
}

/// A tensor of such calls, dense in the layout, without memory.
packjit_tensor tensor_of(const Spec& spec, const TensorRule& rule, const packjit_shape& shape) {
  const Sizes sizes = sizes_of(spec, shape);
  packjit_tensor tensor{};
  tensor.struct_size = sizeof(tensor);
  tensor.dtype = c_dtype(packjit::element_type(spec, rule));
  for (std::string_view symbol : shape_symbols(rule.shape)) tensor.shape[tensor.rank++] = sizes[symbol];
  static_cast<void>(count_of({tensor.shape, tensor.shape + tensor.rank}));  // throws where 63 bits are too few
  std::int64_t next = 1;
  for (std::int32_t i = tensor.rank; i-- > 0;) {
    tensor.stride[i] = next;
    next *= tensor.shape[i];
  }
  if (rule.shape != "batch seqlen dim" || shape.layout == PACKJIT_TOKEN_MAJOR) return tensor;
  const std::int64_t step = shape.layout == PACKJIT_CHANNEL_MAJOR ? 1 : 2;  // strided: a gap after each element
  static_cast<void>(count_of({step, sizes.seqlen, sizes.dim}));
  tensor.stride[0] = step * sizes.seqlen * sizes.dim;
  tensor.stride[1] = step;
  tensor.stride[2] = step * sizes.seqlen;
  return tensor;
}

bool exists(const Spec& spec, const TensorRule& rule) { return rule.field.empty() || spec.values[rule.field] != 0; }

CheckedCall plan_shape(const DeviceInfo& device, const Spec& spec, const packjit_shape& shape) {
  check_shape(shape);
  TensorViews views;
  for (const TensorRule& rule : tensor_rules(spec)) {
    if (!exists(spec, rule)) continue;
    packjit_tensor tensor = tensor_of(spec, rule, shape);
    alignas(16) static char place;  // never read
    tensor.data = &place;
    views.emplace(rule.name, view_of(tensor, rule.name));
  }
  const MapShape map = shape_of({shape.batch, shape.seqlen, shape.max_sequences, shape.max_seqlen}, storage_of(spec));
  return plan_call(device, spec, views, map,
                   {shape.batch * shape.seqlen, shape.max_sequences, shape.dim, shape.max_seqlen});
}

/// Kernels go on reading inputs after they have begun to write outputs.
void refuse_shared(Operator op, std::span<void* const> addresses, GivenTensors tensors) {
  const std::span<const TensorRule> rules = tensor_rules(op);
  const auto empty = [](const packjit_tensor& tensor) {
    return std::any_of(tensor.shape, tensor.shape + tensor.rank, [](std::int64_t size) { return size == 0; });
  };
  for (std::size_t out = 0; out < addresses.size(); ++out) {
    if (!rules[out].output || addresses[out] == nullptr) continue;
    for (std::size_t other = 0; other < addresses.size(); ++other) {
      if (other == out || addresses[other] != addresses[out] || empty(*tensors[out]) || empty(*tensors[other]))
        continue;
      throw std::invalid_argument(
          fmt::format("{}: tensors {} and {} begin at the same address; what a call writes needs "
                      "memory of its own",
                      name_of(op), rules[out].name, rules[other].name));
    }
  }
}

}  // namespace

bool is_backward_direction(std::int32_t direction) {
  if (direction == PACKJIT_FORWARD || direction == PACKJIT_BACKWARD) return direction == PACKJIT_BACKWARD;
  throw std::invalid_argument(
      fmt::format("direction is {}; expected PACKJIT_FORWARD (1) or PACKJIT_BACKWARD (2)", direction));
}

PackedOperator::PackedOperator(Backend& backend, const packjit_operator_options& options)
    : backend_(backend), forward_(specs_of(options).first), backward_(specs_of(options).second) {}

void PackedOperator::run(bool backward, void* stream, const Map& map, GivenTensors tensors,
                         const Workspace& workspace) {
  const Spec& asked = spec(backward);
  if (&map.backend() != &backend_)
    throw std::invalid_argument("the map was made with another device than the operator");
  map.refuse_unbuilt();
  const std::unique_ptr<Lane> lane = backend_.enter(stream);
  if (map.context() != lane->context()) {
    throw std::invalid_argument(
        "the map was made in another CUDA context than the one that is current: make one in each context");
  }
  const MappedSequences& sequences = map.sequences();
  const CallKey key(asked.op, tensors, sequences, map.max_sequences(), map.max_seqlen(), lane->context());
  std::shared_ptr<const CallPlan> plan = plans_[backward ? 1 : 0].find(key);
  if (plan == nullptr) {
    TensorViews views;
    const std::span<const TensorRule> rules = tensor_rules(asked.op);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i] != nullptr) views.emplace(rules[i].name, view_of(*tensors[i], rules[i].name));
    }
    CheckedCall call = plan_call(lane->info(), asked, views, sequences,
                                 {sequences.batch * sequences.seqlen, map.max_sequences(), 0, map.max_seqlen()});
    ArgumentForm argument(call.spec, call.config, call.problem, views);
    auto module = lane->device().load(call.spec, call.config);
    lane->device().resolve(*module, call.plan.launches);
    plan = std::make_shared<const CallPlan>(CallPlan{key, std::move(call), std::move(argument), std::move(module)});
    plans_[backward ? 1 : 0].add(plan);
    if (CaptureFile* file = backend_.capture()) record_shape(*file, *lane, plan->call, sequences);
  }
  void* memory = workspace(*lane, static_cast<std::size_t>(plan->call.plan.workspace_bytes));
  std::array<void*, kMostTensors> addresses{};
  for (std::size_t i = 0; i < tensors.size(); ++i) addresses.at(i) = tensors[i] == nullptr ? nullptr : tensors[i]->data;
  refuse_shared(asked.op, std::span(addresses.data(), tensors.size()), tensors);
  const KernelArgument argument = plan->argument.with(std::span(addresses.data(), tensors.size()), sequences, memory);
  if (lane->is_captured()) map.keep_for_graphs();
  for (const KernelLaunch& launch : plan->call.plan.launches) {
    lane->device().launch(*plan->module, launch, argument.bytes());
  }
  lane->device().check_guards();  // of host execution: a GPU's buffers have none here
}

void PackedOperator::prepare(void* stream, std::int32_t directions, const packjit_shape& shape, void* handed) {
  if (directions < PACKJIT_FORWARD || directions > PACKJIT_FORWARD + PACKJIT_BACKWARD) {
    throw std::invalid_argument(
        fmt::format("directions is {}; expected PACKJIT_FORWARD (1), PACKJIT_BACKWARD (2) or their sum", directions));
  }
  const std::unique_ptr<Lane> lane = backend_.enter(stream, handed);
  for (const bool backward : {false, true}) {
    if ((directions & (backward ? PACKJIT_BACKWARD : PACKJIT_FORWARD)) == 0) continue;
    const CheckedCall call = plan_shape(lane->info(), spec(backward), shape);
    const auto module = lane->device().load(call.spec, call.config);
    lane->device().resolve(*module, call.plan.launches);
    if (shape.caller_workspace == 0) {
      static_cast<void>(lane->workspace(static_cast<std::size_t>(call.plan.workspace_bytes)));
    }
  }
}

std::int64_t PackedOperator::workspace_bytes(bool backward, const packjit_shape& shape) {
  const std::unique_ptr<Lane> lane = backend_.enter(nullptr);
  return plan_shape(lane->info(), spec(backward), shape).plan.workspace_bytes;
}

packjit_tensor PackedOperator::describe(bool backward, const packjit_shape& shape, std::string_view name) const {
  check_shape(shape);
  const Spec& asked = spec(backward);
  std::string names;
  for (const TensorRule& rule : tensor_rules(asked)) {
    if (!exists(asked, rule)) continue;
    if (rule.name == name) return tensor_of(asked, rule, shape);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", rule.name);
  }
  throw std::invalid_argument(
      fmt::format("{} has no tensor '{}' with these options; it has {}", name_of(asked.op), name, names));
}

}  // namespace packjit::api
