#pragma once

#include <memory>

#include "runtime/boundaries.hpp"
#include "runtime/operator_call.hpp"

namespace packjit {

/// A SequenceMap that the device builds from boundaries in its own memory. The host is not waited for: it knows only
/// the limits, so there are `max_sequences` slots, and the unused ones are empty sequences behind the last token.
///
/// The constructor takes memory and compiles; build() only launches, so it can be captured in a CUDA graph once it has
/// run before. Not thread-safe. Must not outlive the device.
class DeviceSequenceMap {
 public:
  /// Boundaries of this form and type; for rows the type does not matter. Throws std::invalid_argument for limits out
  /// of range and for a type that is no integer.
  DeviceSequenceMap(Device& device, Boundaries::Form form, ElementType type, const MapLimits& limits,
                    MapStorage storage = MapStorage::positions);
  /// With launches of this Config instead of the built-in one.
  DeviceSequenceMap(Device& device, Boundaries::Form form, ElementType type, const MapLimits& limits,
                    MapStorage storage, const Config& config);

  /// Launches the building. `boundaries` is dense: position_indices or seq_idx of shape (batch, seqlen), cu_seqlens of
  /// at most max_sequences + 1 offsets; none for rows. Throws std::invalid_argument for a tensor of another type or
  /// shape.
  ///
  /// Boundaries that break a rule give a map in which every row is padding, and a record that check() reads.
  void build(const TensorView& boundaries = {});

  /// Waits. Throws std::invalid_argument with the words of build_sequence_map() where boundaries broke a rule since the
  /// last check(), for the first time they did.
  void check();

  /// Waits. The map as the host sees it, equal to with_unused_slots(build_sequence_map(...)). Where it is not stored as
  /// positions, run_index and slot are made from the items.
  [[nodiscard]] SequenceMap read();

  /// What operators take, whatever was built last.
  [[nodiscard]] const MappedSequences& sequences() const { return sequences_; }

 private:
  Device& device_;
  Boundaries::Form form_;
  ElementType type_;
  MapLimits limits_;
  MappedSequences sequences_;
  Buffer workspace_;
  std::shared_ptr<const Module> module_;
  Plan plan_;
  MapArguments arguments_{};
};

}  // namespace packjit
