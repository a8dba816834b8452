#pragma once

#include <optional>

#include "database/builtin_config.hpp"
#include "generator/operators.hpp"
#include "generator/sequence_map.hpp"
#include "runtime/device.hpp"
#include "runtime/sequence_map.hpp"
#include "runtime/tensor.hpp"

namespace packjit {

/// What launches depend on of a map.
struct MapShape {
  MapStorage storage = MapStorage::positions;
  std::int64_t batch = 0, seqlen = 0;
  std::int64_t n_sequences = 0;  ///< slots: how many states there are
  std::int64_t items = 0;        ///< the most there can be; how many there are, kernels read from the summary
  std::int64_t segments = 0;     ///< the same, where long sequences are cut
};
/// Of a map with room for so much.
[[nodiscard]] MapShape shape_of(const MapLimits& limits, MapStorage storage);

/// A SequenceMap in device memory. Must not outlive its Device.
///
/// Convolutions read it as their Spec field `map` says. The scan's backward reads positions only.
struct MappedSequences : MapShape {
  /// A copy.
  MappedSequences(Device& device, const SequenceMap& map, MapStorage storage = MapStorage::positions);
  /// Room for a map that DeviceSequenceMap builds.
  MappedSequences(Device& device, const MapLimits& limits, MapStorage storage = MapStorage::positions);
  Buffer run_index, slot;  ///< of each token, as `storage` says; slot for positions only
  Buffer item_list, segment_list, stretches, summary;
};

/// How the operator wants its map stored.
[[nodiscard]] MapStorage storage_of(const Spec& spec);

/// Reads the sizes off the tensors that are present and checks every shape and dtype against tensor_rules(spec.op).
/// Inputs and outputs alike; a tensor that the Spec asks for must be there, one it does not know is refused.
/// Throws std::invalid_argument naming the tensor, its shape or dtype, and what was expected.
[[nodiscard]] Sizes bind_sizes(const Spec& spec, const TensorViews& tensors, std::int64_t batch, std::int64_t seqlen,
                               std::int64_t n_sequences);

/// Sets spec fields that follow from tensors: layout (from strides), groups. `vector` of the Config is reduced to what
/// strides, sizes and base addresses allow.
void specialise(Spec& spec, Config& config, const TensorViews& tensors);

/// A call that was found to fit: all that follows from sizes, strides and dtypes, but no address.
struct CheckedCall {
  Spec spec;
  Config config;
  Problem problem;
  Plan plan;
};
/// Throws std::invalid_argument for tensors, a map or a Spec that do not fit each other or the device.
[[nodiscard]] CheckedCall check_call(const DeviceInfo& device, const Spec& spec, const Config& config,
                                     const TensorViews& tensors, const MapShape& map);

/// Runs one operator on tensors in device memory: checks, generates, compiles (or finds) and launches. Outputs are
/// written completely, padding included. Does not wait. `workspace` is grown to what the operator needs; calls that
/// follow each other on the device may share it. `module` replaces the generated kernel (hand-edited source).
void run_operator(Device& device, const Spec& spec, const Config& config, const TensorViews& tensors,
                  const MappedSequences& sequences, Buffer& workspace, const Module* module = nullptr);

/// One operator on tensors in host memory, for programs that read and write files and for checks.
struct HostCall {
  Spec spec;                     ///< dtype, sizes and layout fields are overwritten from the tensors
  std::optional<Config> config;  ///< else the built-in default for the device
  /// Of the activations. channel_major: `inputs` and outputs are (batch, dim, seqlen). strided: they are (batch,
  /// seqlen, dim), and the device copies have gaps between elements and begin at an odd address.
  Layout layout = Layout::token_major;
  bool final_states = false;  ///< forward: also return final_states
  /// Hand-edited kernel source. Its "// Key:" line gives the Config, in place of `config`, and must be of this Spec.
  std::optional<std::string> source;
  bool final_states_only_if_asked = false;  ///< else initial states bring final ones
};
/// Spec fields are switched on by the tensors that are present (z, D, bias, delta_bias, initial_states, dfinal_states);
/// softplus and activation are taken from call.spec. Copies in, runs on poisoned outputs, checks guard zones, copies
/// out. Returns the outputs. Throws std::invalid_argument for bad tensors or boundaries, CheckFailed for a damaged
/// guard zone.
[[nodiscard]] HostTensors run_on_host_tensors(Device& device, const HostCall& call, const HostTensors& inputs,
                                              const SequenceMap& map);

}  // namespace packjit
