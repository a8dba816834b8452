#include "runtime/kernel_argument.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace packjit {
namespace {

/// Where an argument has the address of a tensor; a view begins with it.
struct Place {
  std::string_view tensor;
  std::size_t offset;
};
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): names what it takes the offset of
#define PACKJIT_PLACE(Struct, member) \
  { #member, offsetof(Struct, member) }
constexpr Place kConvPlaces[] = {
    PACKJIT_PLACE(ConvArguments, x),
    PACKJIT_PLACE(ConvArguments, out),
    PACKJIT_PLACE(ConvArguments, dout),
    PACKJIT_PLACE(ConvArguments, dx),
    PACKJIT_PLACE(ConvArguments, weight),
    PACKJIT_PLACE(ConvArguments, bias),
    PACKJIT_PLACE(ConvArguments, initial_states),
    PACKJIT_PLACE(ConvArguments, dfinal_states),
    PACKJIT_PLACE(ConvArguments, final_states),
    PACKJIT_PLACE(ConvArguments, dinitial_states),
    PACKJIT_PLACE(ConvArguments, dweight),
    PACKJIT_PLACE(ConvArguments, dbias),
};
constexpr Place kSsmPlaces[] = {
    PACKJIT_PLACE(SsmArguments, u),
    PACKJIT_PLACE(SsmArguments, delta),
    PACKJIT_PLACE(SsmArguments, z),
    PACKJIT_PLACE(SsmArguments, out),
    PACKJIT_PLACE(SsmArguments, dout),
    PACKJIT_PLACE(SsmArguments, du),
    PACKJIT_PLACE(SsmArguments, ddelta),
    PACKJIT_PLACE(SsmArguments, dz),
    PACKJIT_PLACE(SsmArguments, B),
    PACKJIT_PLACE(SsmArguments, C),
    PACKJIT_PLACE(SsmArguments, dB),
    PACKJIT_PLACE(SsmArguments, dC),
    PACKJIT_PLACE(SsmArguments, A),
    PACKJIT_PLACE(SsmArguments, D),
    PACKJIT_PLACE(SsmArguments, delta_bias),
    PACKJIT_PLACE(SsmArguments, initial_states),
    PACKJIT_PLACE(SsmArguments, dfinal_states),
    PACKJIT_PLACE(SsmArguments, final_states),
    PACKJIT_PLACE(SsmArguments, dinitial_states),
    PACKJIT_PLACE(SsmArguments, dA),
    PACKJIT_PLACE(SsmArguments, dD),
    PACKJIT_PLACE(SsmArguments, ddelta_bias),
    PACKJIT_PLACE(SsmArguments, checkpoints),
};
#undef PACKJIT_PLACE
static_assert(std::is_standard_layout_v<ConvArguments> && std::is_standard_layout_v<SsmArguments>);
static_assert(offsetof(View3, data) == 0 && offsetof(View4, data) == 0);

View3 view3(const TensorViews& tensors, std::string_view name) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) return {};
  const std::vector<std::int64_t>& stride = it->second.stride;
  return {nullptr, stride[0], stride[1], stride[2]};
}

/// Without strides where the tensor is of channels and dense.
View4 view4(const TensorViews& tensors, std::string_view name) {
  const auto it = tensors.find(name);
  if (it == tensors.end() || it->second.stride.size() != 4) return {};
  const std::vector<std::int64_t>& stride = it->second.stride;
  return {nullptr, stride[0], stride[1], stride[2], stride[3]};
}

ConvArguments conv_sizes(const Problem& problem, const TensorViews& tensors) {
  ConvArguments a{};
  a.x = view3(tensors, "x");
  a.out = view3(tensors, "out");
  a.dout = view3(tensors, "dout");
  a.dx = view3(tensors, "dx");
  a.batch = problem.sizes.batch;
  a.seqlen = problem.sizes.seqlen;
  a.dim = problem.sizes.dim;
  return a;
}

SsmArguments ssm_sizes(const Problem& problem, const TensorViews& tensors, const SsmWorkspace& space) {
  SsmArguments a{};
  a.u = view3(tensors, "u");
  a.delta = view3(tensors, "delta");
  a.z = view3(tensors, "z");
  a.out = view3(tensors, "out");
  a.dout = view3(tensors, "dout");
  a.du = view3(tensors, "du");
  a.ddelta = view3(tensors, "ddelta");
  a.dz = view3(tensors, "dz");
  a.B = view4(tensors, "B");
  a.C = view4(tensors, "C");
  a.dB = view4(tensors, "dB");
  a.dC = view4(tensors, "dC");
  a.batch = problem.sizes.batch;
  a.seqlen = problem.sizes.seqlen;
  a.dim = problem.sizes.dim;
  a.groups = problem.sizes.groups;
  a.blocks_per_group = space.blocks_per_group;
  a.item_blocks = space.item_blocks;
  return a;
}

void set_map(ConvArguments& a, const MappedSequences& sequences) {
  const auto* summary = static_cast<const MapSummary*>(sequences.summary.data());
  a.run_index = sequences.run_index.data();
  a.slot = static_cast<const int*>(sequences.slot.data());
  a.stretches = static_cast<const SequenceItem*>(sequences.stretches.data());
  a.stretch_count = &summary->stretches;
  a.items = static_cast<const SequenceItem*>(sequences.item_list.data());
  a.item_count = &summary->items;
}

void set_map(SsmArguments& a, const MappedSequences& sequences, bool segmented) {
  const auto* summary = static_cast<const MapSummary*>(sequences.summary.data());
  a.run_index = static_cast<const int*>(sequences.run_index.data());
  a.items = static_cast<const SequenceItem*>((segmented ? sequences.segment_list : sequences.item_list).data());
  a.item_count = segmented ? &summary->segments : &summary->items;
}

void set_workspace(SsmArguments& a, const SsmWorkspace& space, bool backward, void* workspace) {
  auto* memory = static_cast<std::byte*>(workspace);
  const auto part = [&](std::int64_t offset) { return reinterpret_cast<float*>(memory + offset); };
  a.segment_dt = part(space.segment_dt);
  a.segment_states = part(space.segment_states);
  a.segment_gradients = part(space.segment_gradients);
  if (!backward) return;
  if (a.checkpoints == nullptr) a.checkpoints = part(space.checkpoints);
  a.partial_bc = part(space.partial_bc);
  a.partial_channels = part(space.partial_channels);
}

}  // namespace

std::span<const std::byte> KernelArgument::bytes() const {
  return std::visit([](const auto& argument) { return std::as_bytes(std::span(&argument, 1)); }, value);
}

ArgumentForm::ArgumentForm(const Spec& spec, const Config& config, const Problem& problem, const TensorViews& tensors)
    : op_(spec.op), segmented_(config.values.has("segments") && config.values["segments"] != 0) {
  if (is_scan(op_)) {
    space_ = ssm_workspace(spec, config, problem);
    sizes_ = ssm_sizes(problem, tensors, space_);
  } else {
    sizes_ = conv_sizes(problem, tensors);
  }
  const std::span<const Place> places = is_scan(op_) ? std::span<const Place>(kSsmPlaces) : kConvPlaces;
  for (const TensorRule& rule : tensor_rules(op_)) {
    const auto place = std::ranges::find(places, rule.name, &Place::tensor);
    if (place == places.end()) {
      throw std::logic_error(fmt::format("{}: the argument has no place for tensor {}", name_of(op_), rule.name));
    }
    places_.push_back(place->offset);
  }
}

KernelArgument ArgumentForm::with(std::span<void* const> tensors, const MappedSequences& sequences,
                                  void* workspace) const {
  KernelArgument argument{sizes_};
  std::visit(
      [&](auto& a) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          std::memcpy(reinterpret_cast<std::byte*>(&a) + places_[i], &tensors[i], sizeof(void*));
        }
        if constexpr (std::is_same_v<std::decay_t<decltype(a)>, ConvArguments>) {
          a.partial = static_cast<float*>(workspace);
          set_map(a, sequences);
        } else {
          set_workspace(a, space_, is_backward(op_), workspace);
          set_map(a, sequences, segmented_);
        }
      },
      argument.value);
  return argument;
}

KernelArgument ArgumentForm::with(const TensorViews& tensors, const MappedSequences& sequences, void* workspace) const {
  std::vector<void*> addresses;
  for (const TensorRule& rule : tensor_rules(op_)) {
    const auto it = tensors.find(rule.name);
    addresses.push_back(it == tensors.end() ? nullptr : it->second.data);
  }
  return with(addresses, sequences, workspace);
}

}  // namespace packjit
