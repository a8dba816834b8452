#pragma once

#include <cstdint>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// Index of each token inside its piece, -1 for padding; `pack_length` values. A piece that continues a document
/// restarts at 0 like any other, because only the first one in a row could do otherwise: what it continues is said by
/// state_handovers(), which works for every piece of a row. Throws std::invalid_argument for a row that is too long.
[[nodiscard]] std::vector<std::int32_t> position_indices(const Row& row, std::int64_t pack_length);
/// The same for all rows of a call, (rows, pack_length) row-major.
[[nodiscard]] std::vector<std::int32_t> position_indices(const Call& call, std::int64_t pack_length);

/// Labels of the sequences of a call, (rows, pack_length) row-major: the slot of each token's piece, numbered over the
/// call as state_handovers() does it for position_indices; -1 for padding.
[[nodiscard]] std::vector<std::int32_t> seq_idx(const Call& call, std::int64_t pack_length);

/// The document of each token, (rows, pack_length) row-major; -1 for padding.
[[nodiscard]] std::vector<std::int64_t> document_ids(const Call& call, std::int64_t pack_length);
/// The place of each token in its document, (rows, pack_length) row-major; -1 for padding.
[[nodiscard]] std::vector<std::int64_t> document_offsets(const Call& call, std::int64_t pack_length);

/// Tokens of a row that no piece fills. Throws std::invalid_argument for a row that is too long.
[[nodiscard]] std::int64_t padding_of(const Row& row, std::int64_t pack_length);

/// Increasing offsets into the flattened rows of a call, from 0 to rows * pack_length. The padding at the end of a row
/// is an interval of its own (the form has no other way to say it), so intervals and pieces are numbered differently.
[[nodiscard]] std::vector<std::int64_t> cu_seqlens(const Call& call, std::int64_t pack_length);

/// A state slot of one call.
struct StateSlot {
  std::int64_t call = 0;
  std::int64_t slot = 0;
  friend bool operator==(const StateSlot&, const StateSlot&) = default;
};

/// The final state in slot `from` is the initial state of slot `to`. `from.call` is smaller than `to.call`.
struct StateHandover {
  std::int64_t document = 0;
  StateSlot from;
  StateSlot to;
  friend bool operator==(const StateHandover&, const StateHandover&) = default;
};

/// What numbers the slots of a call: with position_indices padding has no slot, with cu_seqlens it has one.
enum class SlotNumbering { position_indices, cu_seqlens };

/// Every handover of a plan, in the order of `to`. Slots that appear in no `to` start from zero.
[[nodiscard]] std::vector<StateHandover> state_handovers(const PackPlan& plan, SlotNumbering numbering);

}  // namespace packjit
