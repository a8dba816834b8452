#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "templates/device/sequence_map.cuh"

namespace packjit {

/// Where sequences begin and end, in one of the four forms that callers have. Values are given as int64 whatever
/// their width in memory was; `saturation` is the largest position a 16-bit form can hold (0: none).
/// Errors are std::invalid_argument naming the row, the token, what was found and what the rule is.
struct Boundaries {
  enum class Form { position_indices, seq_idx, cu_seqlens, rows } form = Form::rows;
  std::vector<std::int64_t> values;  ///< (batch, seqlen) row-major; offsets for cu_seqlens; empty for rows
  std::int64_t saturation = 0;
};

/// The boundaries of one batch in the one form that kernels read. Built once, shared by every layer.
/// A plain value on the host; `MappedSequences` is its copy on a device.
struct SequenceMap {
  std::int64_t batch = 0, seqlen = 0;
  std::int64_t n_sequences = 0;              ///< slots: one state each, numbered by first token in row-major order
  std::int64_t max_seqlen = 0;               ///< tokens of the longest run
  std::vector<std::int32_t> run_index;       ///< (batch, seqlen): index of the token inside its run, -1 for padding
  std::vector<std::int32_t> slot;            ///< (batch, seqlen): slot of the token's run, -1 for padding
  std::vector<SequenceItem> items;           ///< runs and stretches of padding; longest first, then by first token
  friend bool operator==(const SequenceMap&, const SequenceMap&);
};

/// Turns boundaries into a map, or throws std::invalid_argument when they break the rules of docs/design.md.
[[nodiscard]] SequenceMap build_sequence_map(const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen);

}  // namespace packjit
