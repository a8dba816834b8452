#include "runtime/kernel_argument.hpp"

#include "generator/ssm_pack.hpp"

namespace packjit {
namespace {

const TensorView* find(const TensorViews& tensors, std::string_view name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

void* address(const TensorViews& tensors, std::string_view name) {
  const TensorView* view = find(tensors, name);
  return view == nullptr ? nullptr : view->data;
}

float* floats(const TensorViews& tensors, std::string_view name) { return static_cast<float*>(address(tensors, name)); }

View3 view3(const TensorViews& tensors, std::string_view name) {
  const TensorView* view = find(tensors, name);
  if (view == nullptr) return {};
  return {view->data, view->stride[0], view->stride[1], view->stride[2]};
}

View4 view4(const TensorViews& tensors, std::string_view name) {
  const TensorView* view = find(tensors, name);
  if (view == nullptr) return {};
  return {view->data, view->stride[0], view->stride[1], view->stride[2], view->stride[3]};
}

ConvArguments conv_arguments(const Problem& problem, const TensorViews& tensors, const MappedSequences& sequences,
                             void* workspace) {
  ConvArguments a{};
  a.x = view3(tensors, "x");
  a.out = view3(tensors, "out");
  a.dout = view3(tensors, "dout");
  a.dx = view3(tensors, "dx");
  a.weight = address(tensors, "weight");
  a.bias = address(tensors, "bias");
  a.initial_states = address(tensors, "initial_states");
  a.dfinal_states = address(tensors, "dfinal_states");
  a.final_states = address(tensors, "final_states");
  a.dinitial_states = address(tensors, "dinitial_states");
  a.dweight = floats(tensors, "dweight");
  a.dbias = floats(tensors, "dbias");
  a.partial = static_cast<float*>(workspace);
  a.run_index = sequences.run_index.data();
  a.slot = static_cast<const int*>(sequences.slot.data());
  a.stretches = static_cast<const SequenceItem*>(sequences.stretches.data());
  a.stretch_count = &static_cast<const MapSummary*>(sequences.summary.data())->stretches;
  a.items = static_cast<const SequenceItem*>(sequences.item_list.data());
  a.item_count = &static_cast<const MapSummary*>(sequences.summary.data())->items;
  a.batch = problem.sizes.batch;
  a.seqlen = problem.sizes.seqlen;
  a.dim = problem.sizes.dim;
  return a;
}

SsmArguments ssm_arguments(const Spec& spec, const Config& config, const Problem& problem, const TensorViews& tensors,
                           const MappedSequences& sequences, void* workspace) {
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
  a.A = floats(tensors, "A");
  a.D = floats(tensors, "D");
  a.delta_bias = floats(tensors, "delta_bias");
  a.initial_states = floats(tensors, "initial_states");
  a.dfinal_states = floats(tensors, "dfinal_states");
  a.final_states = floats(tensors, "final_states");
  a.dinitial_states = floats(tensors, "dinitial_states");
  a.dA = floats(tensors, "dA");
  a.dD = floats(tensors, "dD");
  a.ddelta_bias = floats(tensors, "ddelta_bias");
  a.checkpoints = floats(tensors, "checkpoints");
  const SsmWorkspace space = ssm_workspace(spec, config, problem);
  auto* memory = static_cast<std::byte*>(workspace);
  const auto part = [&](std::int64_t offset) { return reinterpret_cast<float*>(memory + offset); };
  a.segment_dt = part(space.segment_dt);
  a.segment_states = part(space.segment_states);
  a.segment_gradients = part(space.segment_gradients);
  if (is_backward(spec.op)) {
    if (a.checkpoints == nullptr) a.checkpoints = part(space.checkpoints);
    a.partial_bc = part(space.partial_bc);
    a.partial_channels = part(space.partial_channels);
  }
  a.run_index = static_cast<const int*>(sequences.run_index.data());
  const bool segmented = config.values["segments"] != 0;
  const auto* summary = static_cast<const MapSummary*>(sequences.summary.data());
  a.items = static_cast<const SequenceItem*>((segmented ? sequences.segment_list : sequences.item_list).data());
  a.item_count = segmented ? &summary->segments : &summary->items;
  a.batch = problem.sizes.batch;
  a.seqlen = problem.sizes.seqlen;
  a.dim = problem.sizes.dim;
  a.groups = problem.sizes.groups;
  a.blocks_per_group = space.blocks_per_group;
  a.item_blocks = space.item_blocks;
  return a;
}

}  // namespace

std::span<const std::byte> KernelArgument::bytes() const {
  return std::visit([](const auto& argument) { return std::as_bytes(std::span(&argument, 1)); }, value);
}

KernelArgument kernel_argument(const Spec& spec, const Config& config, const Problem& problem,
                               const TensorViews& tensors, const MappedSequences& sequences, void* workspace) {
  if (is_scan(spec.op)) return {ssm_arguments(spec, config, problem, tensors, sequences, workspace)};
  return {conv_arguments(problem, tensors, sequences, workspace)};
}

}  // namespace packjit
