#include "packing/boundaries.hpp"

#include <stdexcept>
#include <string>

namespace packjit {
namespace {

void append_positions(std::vector<std::int32_t>& positions, const Row& row, std::int64_t pack_length) {
  const std::int64_t padding = padding_of(row, pack_length);
  for (const Piece& piece : row.pieces) {
    for (std::int64_t i = 0; i < piece.length; ++i) positions.push_back(static_cast<std::int32_t>(i));
  }
  positions.insert(positions.end(), static_cast<std::size_t>(padding), -1);
}

/// -1 for padding; for tokens what `first_of(piece)` gives and `step` more each.
template <typename T, typename FirstOf>
std::vector<T> value_of_each_token(const Call& call, std::int64_t pack_length, T step, FirstOf first_of) {
  std::vector<T> values;
  values.reserve(call.rows.size() * static_cast<std::size_t>(pack_length));
  for (const Row& row : call.rows) {
    const std::int64_t padding = padding_of(row, pack_length);
    for (const Piece& piece : row.pieces) {
      T value = first_of(piece);
      for (std::int64_t i = 0; i < piece.length; ++i, value += step) values.push_back(value);
    }
    values.insert(values.end(), static_cast<std::size_t>(padding), T{-1});
  }
  return values;
}

}  // namespace

std::int64_t padding_of(const Row& row, std::int64_t pack_length) {
  std::int64_t tokens = 0;
  for (const Piece& piece : row.pieces) tokens += piece.length;
  if (tokens > pack_length) {
    throw std::invalid_argument("packing: a row holds " + std::to_string(tokens) +
                                " tokens, more than the pack length of " + std::to_string(pack_length));
  }
  return pack_length - tokens;
}

std::vector<std::int32_t> seq_idx(const Call& call, std::int64_t pack_length) {
  std::int32_t next = 0;
  return value_of_each_token<std::int32_t>(call, pack_length, 0, [&](const Piece&) { return next++; });
}

std::vector<std::int64_t> document_ids(const Call& call, std::int64_t pack_length) {
  return value_of_each_token<std::int64_t>(call, pack_length, 0, [](const Piece& piece) { return piece.document; });
}

std::vector<std::int64_t> document_offsets(const Call& call, std::int64_t pack_length) {
  return value_of_each_token<std::int64_t>(call, pack_length, 1, [](const Piece& piece) { return piece.offset; });
}

std::vector<std::int32_t> position_indices(const Row& row, std::int64_t pack_length) {
  std::vector<std::int32_t> positions;
  append_positions(positions, row, pack_length);
  return positions;
}

std::vector<std::int32_t> position_indices(const Call& call, std::int64_t pack_length) {
  std::vector<std::int32_t> positions;
  positions.reserve(call.rows.size() * static_cast<std::size_t>(pack_length));
  for (const Row& row : call.rows) append_positions(positions, row, pack_length);
  return positions;
}

std::vector<std::int64_t> cu_seqlens(const Call& call, std::int64_t pack_length) {
  std::vector<std::int64_t> offsets{0};
  for (const Row& row : call.rows) {
    const std::int64_t row_end = offsets.back() + pack_length;
    (void)padding_of(row, pack_length);
    for (const Piece& piece : row.pieces) offsets.push_back(offsets.back() + piece.length);
    if (offsets.back() < row_end) offsets.push_back(row_end);
  }
  return offsets;
}

std::vector<StateHandover> state_handovers(const PackPlan& plan, SlotNumbering numbering) {
  std::vector<StateHandover> handovers;
  std::vector<StateSlot> last(static_cast<std::size_t>(plan.documents));
  for (std::size_t c = 0; c < plan.calls.size(); ++c) {
    StateSlot here{static_cast<std::int64_t>(c), 0};
    for (const Row& row : plan.calls[c].rows) {
      const bool padded = padding_of(row, plan.options.pack_length) > 0;
      for (const Piece& piece : row.pieces) {
        StateSlot& before = last.at(static_cast<std::size_t>(piece.document));
        if (piece.continues) handovers.push_back({piece.document, before, here});
        before = here;
        ++here.slot;
      }
      if (padded && numbering == SlotNumbering::cu_seqlens) ++here.slot;
    }
  }
  return handovers;
}

}  // namespace packjit
