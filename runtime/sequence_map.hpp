#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device.hpp"
#include "templates/device/sequence_map_arguments.cuh"

namespace packjit {

/// Where sequences begin and end, in one of the four forms that callers have. Values are given as int64 whatever
/// their width in memory was. runtime/boundaries.hpp makes them from tensors.
///
/// - position_indices (batch, seqlen): a run is positions that rise by 1. The first real token of a row may have a
/// position
///   above 0 (it continues an earlier sequence); every other run starts at 0.
/// - seq_idx (batch, seqlen): a run is equal values side by side. The value is only a label and may come again.
/// - cu_seqlens (n_sequences + 1): sequence i is the flattened tokens [values[i], values[i + 1]). Starts at 0, does not
///   decrease, ends at batch * seqlen, has an offset at every row start. Equal offsets are an empty sequence with a
///   slot of its own. No padding: a padded tail is a sequence.
/// - rows: every row is one sequence.
///
/// In the first two forms any negative value is a padding token, which ends a run. Runs never cross rows.
struct Boundaries {
  enum class Form { position_indices, seq_idx, cu_seqlens, rows } form = Form::rows;
  std::vector<std::int64_t> values;  ///< (batch, seqlen) row-major; offsets for cu_seqlens; empty for rows
  /// The position at which position_indices stop rising because their width holds no more (0: none): in a run, it is
  /// followed by itself, and a larger one is refused.
  std::int64_t saturation = 0;
};
[[nodiscard]] std::string_view name_of(Boundaries::Form form);  ///< "position_indices"

/// The boundaries of one batch in the one form that kernels read. Built once, shared by every layer.
/// A plain value on the host; `MappedSequences` is the same on a device, copied or built there.
struct SequenceMap {
  std::int64_t batch = 0, seqlen = 0;
  std::int64_t n_sequences = 0;         ///< slots: one state each, numbered by first token in row-major order
  std::int64_t max_seqlen = 0;          ///< tokens of the longest run
  std::vector<std::int32_t> run_index;  ///< (batch, seqlen): index of the token inside its run, -1 for padding
  std::vector<std::int32_t> slot;       ///< (batch, seqlen): slot of the token's run, -1 for padding
  std::vector<SequenceItem> items;      ///< runs and stretches of padding; longest first, then by first token
  /// The same with runs of more than SEGMENT_TOKENS tokens in segments of that many, in the same order.
  std::vector<SequenceItem> segments;
  friend bool operator==(const SequenceMap&, const SequenceMap&);
};

/// Turns boundaries into a map. Every token lies in exactly one item; empty sequences are items of length 0, at their
/// offset (behind the last token: in the last row, start == seqlen).
///
/// Throws std::invalid_argument when the boundaries break the rules above, naming the row and token (or the offset),
/// what was found and what was expected, and for sizes below 1 or beyond 32 bits.
[[nodiscard]] SequenceMap build_sequence_map(const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen);

/// What the host knows of boundaries that are in device memory. The limits size states, grids and scratch memory.
struct MapLimits {
  std::int64_t batch = 0, seqlen = 0;
  std::int64_t max_sequences = 0;  ///< of the batch: slots
  std::int64_t max_seqlen = 0;     ///< tokens of the longest sequence
};
/// Throws std::invalid_argument for sizes below 1 or beyond 32 bits.
void check_limits(const MapLimits& limits);

/// The map as a device builds it: with `max_sequences` slots, the unused ones empty sequences behind the last token.
/// Throws std::invalid_argument where the map has more sequences, or a longer one, than the limits say.
[[nodiscard]] SequenceMap with_unused_slots(SequenceMap map, Boundaries::Form form, const MapLimits& limits);

/// Throws std::invalid_argument for fewer than two offsets.
void check_offset_count(std::int64_t count, std::int64_t tokens);
/// A violation in words: row and token (or the offset), what was found and what was expected.
[[nodiscard]] std::string violation_text(const MapViolation& violation, Boundaries::Form form, const MapLimits& limits,
                                         std::int64_t saturation);

}  // namespace packjit
