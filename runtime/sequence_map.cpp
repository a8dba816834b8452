#include "runtime/sequence_map.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace packjit {

std::string_view name_of(Boundaries::Form form) {
  switch (form) {
    case Boundaries::Form::position_indices:
      return "position_indices";
    case Boundaries::Form::seq_idx:
      return "seq_idx";
    case Boundaries::Form::cu_seqlens:
      return "cu_seqlens";
    case Boundaries::Form::rows:
      return "rows";
  }
  throw std::invalid_argument(fmt::format("no form of boundaries has the value {}", static_cast<int>(form)));
}

namespace {

constexpr std::int64_t kPadding = -1;  ///< any negative value is padding; written as -1 once normalised

/// What may follow a token, in words; `previous` is empty where no token of a run came before.
std::string expected_positions(std::int64_t previous, std::int64_t saturation) {
  if (previous == kPadding) return "0 (a sequence that starts after padding cannot continue an earlier one) or padding";
  const bool saturated = saturation > 0 && previous == saturation;
  return fmt::format("{} (the run goes on), 0 (a new sequence) or a negative value (padding)",
                     saturated ? fmt::format("{}", saturation) : fmt::format("{}", std::uint64_t(previous) + 1));
}

/// What stands before the first violation, for the host's own checks.
struct Rules {
  const Boundaries& boundaries;
  MapLimits limits;
  [[noreturn]] void refuse(MapRule rule, std::int64_t place, std::int64_t found, std::int64_t previous = 0) const {
    throw std::invalid_argument(
        violation_text({rule, place, found, previous}, boundaries.form, limits, boundaries.saturation));
  }
};

/// Appends runs and padding in row-major order, numbering slots as they come.
class MapBuilder {
 public:
  MapBuilder(std::int64_t batch, std::int64_t seqlen) {
    map_.batch = batch;
    map_.seqlen = seqlen;
    map_.run_index.assign(static_cast<std::size_t>(batch * seqlen), -1);
    map_.slot.assign(static_cast<std::size_t>(batch * seqlen), -1);
  }

  void add_padding(std::int64_t row, std::int64_t start, std::int64_t length) { add_item(row, start, length, -1); }

  void add_run(std::int64_t row, std::int64_t start, std::int64_t length) {
    if (map_.n_sequences == std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument(
          fmt::format("a batch has more than {} sequences; split it", std::numeric_limits<std::int32_t>::max()));
    }
    const auto slot = static_cast<std::int32_t>(map_.n_sequences++);
    add_item(row, start, length, slot);
    map_.max_seqlen = std::max(map_.max_seqlen, length);
    const auto first = static_cast<std::size_t>(row * map_.seqlen + start);
    for (std::int64_t i = 0; i < length; ++i) {
      map_.run_index[first + static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
      map_.slot[first + static_cast<std::size_t>(i)] = slot;
    }
  }

  SequenceMap finish() {
    // Items were added in order of their first token, so a stable sort keeps that order (and that of empty sequences
    // with the same first token) among equal lengths.
    std::stable_sort(map_.items.begin(), map_.items.end(),
                     [](const SequenceItem& a, const SequenceItem& b) { return a.length > b.length; });
    for (const SequenceItem& item : map_.items) add_segments(item);
    return std::move(map_);
  }

 private:
  void add_segments(const SequenceItem& item) {
    SequenceItem segment = item;
    for (; item.slot >= 0 && segment.length > SEGMENT_TOKENS; segment.length -= SEGMENT_TOKENS) {
      map_.segments.push_back({segment.row, segment.start, SEGMENT_TOKENS, segment.slot});
      segment.start += SEGMENT_TOKENS;
    }
    map_.segments.push_back(segment);
  }
  void add_item(std::int64_t row, std::int64_t start, std::int64_t length, std::int32_t slot) {
    map_.items.push_back({static_cast<int>(row), static_cast<int>(start), static_cast<int>(length), slot});
  }
  SequenceMap map_;
};

/// Splits a row into stretches of equal run marks; `starts[t]` says that a run or a stretch of padding begins at t.
void add_row(MapBuilder& builder, std::int64_t row, const std::vector<bool>& starts, const std::vector<bool>& padding) {
  const auto seqlen = static_cast<std::int64_t>(starts.size());
  std::int64_t start = 0;
  for (std::int64_t t = 1; t <= seqlen; ++t) {
    if (t < seqlen && !starts[static_cast<std::size_t>(t)]) continue;
    if (padding[static_cast<std::size_t>(start)]) {
      builder.add_padding(row, start, t - start);
    } else {
      builder.add_run(row, start, t - start);
    }
    start = t;
  }
}

void check_value_count(const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen) {
  const std::int64_t expected = batch * seqlen;
  if (static_cast<std::int64_t>(boundaries.values.size()) != expected) {
    throw std::invalid_argument(fmt::format("{} has {} values; expected {} (batch {} x seqlen {})",
                                            name_of(boundaries.form), boundaries.values.size(), expected, batch,
                                            seqlen));
  }
}

/// Whether a token at `position` carries on the run whose last token was at `previous` (both >= 0).
bool continues(std::int64_t previous, std::int64_t position, std::int64_t saturation) {
  if (saturation > 0 && previous == saturation) return position == saturation;
  return position - 1 == previous;
}

void add_positions(MapBuilder& builder, const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen) {
  const Rules rules{boundaries, {batch, seqlen}};
  const auto width = static_cast<std::size_t>(seqlen);
  std::vector<bool> starts(width);
  std::vector<bool> padding(width);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::int64_t* positions = boundaries.values.data() + row * seqlen;
    std::int64_t previous = kPadding;
    bool first_real = true;
    for (std::size_t t = 0; t < width; ++t) {
      const std::int64_t position = std::max(positions[t], kPadding);
      if (boundaries.saturation > 0 && position > boundaries.saturation) {
        rules.refuse(MapRule::above_saturation, row * seqlen + static_cast<std::int64_t>(t), position);
      }
      padding[t] = position < 0;
      if (padding[t]) {
        starts[t] = previous >= 0;
      } else {
        const bool goes_on = previous >= 0 && continues(previous, position, boundaries.saturation);
        if (position > 0 && !goes_on && !first_real) {
          rules.refuse(MapRule::jump, row * seqlen + static_cast<std::int64_t>(t), position, previous);
        }
        starts[t] = !goes_on;
        first_real = false;
      }
      previous = position;
    }
    add_row(builder, row, starts, padding);
  }
}

void add_labels(MapBuilder& builder, const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen) {
  const auto width = static_cast<std::size_t>(seqlen);
  std::vector<bool> starts(width);
  std::vector<bool> padding(width);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::int64_t* labels = boundaries.values.data() + row * seqlen;
    std::int64_t previous = kPadding;
    for (std::size_t t = 0; t < width; ++t) {
      const std::int64_t label = std::max(labels[t], kPadding);
      padding[t] = label < 0;
      starts[t] = label != previous;
      previous = label;
    }
    add_row(builder, row, starts, padding);
  }
}

void add_offsets(MapBuilder& builder, const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen) {
  const std::vector<std::int64_t>& offsets = boundaries.values;
  const std::int64_t tokens = batch * seqlen;
  const Rules rules{boundaries, {batch, seqlen}};
  const auto count = static_cast<std::int64_t>(offsets.size());
  check_offset_count(count, tokens);
  if (offsets.front() != 0) rules.refuse(MapRule::first_offset, 0, offsets.front());
  if (offsets.back() != tokens) rules.refuse(MapRule::last_offset, count - 1, offsets.back());
  for (std::int64_t i = 1; i < count; ++i) {
    const std::int64_t begin = offsets[static_cast<std::size_t>(i - 1)];
    const std::int64_t end = offsets[static_cast<std::size_t>(i)];
    if (end < begin) rules.refuse(MapRule::falling_offset, i, end, begin);
    if (end > tokens) rules.refuse(MapRule::offset_beyond, i, end);
    // An empty sequence behind the last token stays in the last row, at its end.
    const std::int64_t row = std::min(begin / seqlen, batch - 1);
    const std::int64_t start = begin - row * seqlen;
    if (start + (end - begin) > seqlen) rules.refuse(MapRule::crosses_row, i, end, begin);
    builder.add_run(row, start, end - begin);
  }
}

}  // namespace

bool operator==(const SequenceMap& a, const SequenceMap& b) {
  const auto same_item = [](const SequenceItem& x, const SequenceItem& y) {
    return std::tie(x.row, x.start, x.length, x.slot) == std::tie(y.row, y.start, y.length, y.slot);
  };
  return a.batch == b.batch && a.seqlen == b.seqlen && a.n_sequences == b.n_sequences && a.max_seqlen == b.max_seqlen &&
         a.run_index == b.run_index && a.slot == b.slot &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_item) &&
         std::equal(a.segments.begin(), a.segments.end(), b.segments.begin(), b.segments.end(), same_item);
}

void check_offset_count(std::int64_t count, std::int64_t tokens) {
  if (count >= 2) return;
  throw std::invalid_argument(
      fmt::format("cu_seqlens has {} offsets; expected at least 2, from 0 to the token count {}", count, tokens));
}

std::string violation_text(const MapViolation& violation, Boundaries::Form form, const MapLimits& limits,
                           std::int64_t saturation) {
  const std::int64_t tokens = limits.batch * limits.seqlen;
  const std::int64_t row = violation.place / std::max<std::int64_t>(limits.seqlen, 1);
  const std::int64_t token = violation.place - row * limits.seqlen;
  switch (violation.rule) {
    case MapRule::none:
      return "the boundaries break no rule";
    case MapRule::above_saturation:
      return fmt::format(
          "position_indices: row {}, token {} has position {}, which is above {}, where positions of this width "
          "saturate",
          row, token, violation.found, saturation);
    case MapRule::jump:
      return fmt::format("position_indices: row {}, token {} has position {}; expected {}", row, token, violation.found,
                         expected_positions(violation.previous, saturation));
    case MapRule::first_offset:
      return fmt::format("cu_seqlens[0] is {}; expected 0", violation.found);
    case MapRule::last_offset:
      return fmt::format("cu_seqlens[{}], the last offset, is {}; expected the token count {} (batch {} x seqlen {})",
                         violation.place, violation.found, tokens, limits.batch, limits.seqlen);
    case MapRule::falling_offset:
      return fmt::format(
          "cu_seqlens[{}] is {}, below cu_seqlens[{}], which is {}; expected offsets that do not decrease",
          violation.place, violation.found, violation.place - 1, violation.previous);
    case MapRule::offset_beyond:
      return fmt::format("cu_seqlens[{}] is {}, beyond the token count {} (batch {} x seqlen {})", violation.place,
                         violation.found, tokens, limits.batch, limits.seqlen);
    case MapRule::crosses_row: {
      const std::int64_t next_row = violation.previous / limits.seqlen + 1;
      return fmt::format(
          "cu_seqlens: the sequence from {} to {} crosses the start of row {}, at {}; expected an offset at every row "
          "start",
          violation.previous, violation.found, next_row, next_row * limits.seqlen);
    }
    case MapRule::too_many_sequences:
      return fmt::format("{}: there are {} sequences, more than max_sequences, which is {}; raise it", name_of(form),
                         violation.found, limits.max_sequences);
    case MapRule::too_long:
      return fmt::format(
          "{}: the sequence at row {}, token {} has {} tokens, more than max_seqlen, which is {}; raise it",
          name_of(form), row, token, violation.found, limits.max_seqlen);
  }
  throw std::invalid_argument(fmt::format("no rule of boundaries has the value {}", static_cast<int>(violation.rule)));
}

SequenceMap with_unused_slots(SequenceMap map, Boundaries::Form form, const MapLimits& limits) {
  const auto refuse = [&](MapRule rule, std::int64_t place, std::int64_t found) {
    throw std::invalid_argument(violation_text({rule, place, found, 0}, form, limits, 0));
  };
  if (map.n_sequences > limits.max_sequences) refuse(MapRule::too_many_sequences, 0, map.n_sequences);
  if (map.max_seqlen > limits.max_seqlen) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), length = 0;
    for (const SequenceItem& item : map.items) {
      const std::int64_t place = item.row * map.seqlen + item.start;
      if (item.slot < 0 || item.length <= limits.max_seqlen || place >= first) continue;
      first = place;
      length = item.length;
    }
    refuse(MapRule::too_long, first, length);
  }
  for (; map.n_sequences < limits.max_sequences; ++map.n_sequences) {
    map.items.push_back(
        {static_cast<int>(map.batch - 1), static_cast<int>(map.seqlen), 0, static_cast<int>(map.n_sequences)});
    map.segments.push_back(map.items.back());
  }
  return map;
}

namespace {

// Kernels count rows, tokens of a row and slots in 32 bits, and may look one tile beyond a row's end; offsets into
// tensors have 64.
constexpr std::int64_t kLongestTile = 4096;
constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max() - kLongestTile;

void check_size(std::int64_t batch, std::int64_t seqlen) {
  if (batch >= 1 && batch <= kLargest && seqlen >= 1 && seqlen <= kLargest) return;
  throw std::invalid_argument(
      fmt::format("boundaries of a batch of {} rows of {} tokens; expected 1 to {} rows of 1 to "
                  "{} tokens",
                  batch, seqlen, kLargest, kLargest));
}

}  // namespace

void check_limits(const MapLimits& limits) {
  check_size(limits.batch, limits.seqlen);
  // Items are counted in 32 bits, too: each slot is one, and so is each stretch of padding.
  const std::int64_t most_sequences = (kLargest - limits.batch) / 2;
  if (most_sequences < 1) {
    throw std::invalid_argument(fmt::format(
        "a map of {} rows: expected at most {}, so that there is room for a sequence", limits.batch, kLargest - 2));
  }
  if (limits.max_sequences >= 1 && limits.max_sequences <= most_sequences && limits.max_seqlen >= 1) return;
  throw std::invalid_argument(
      fmt::format("a map of at most {} sequences of at most {} tokens in {} rows; expected 1 to {} sequences of at "
                  "least 1 token",
                  limits.max_sequences, limits.max_seqlen, limits.batch, most_sequences));
}

SequenceMap build_sequence_map(const Boundaries& boundaries, std::int64_t batch, std::int64_t seqlen) {
  check_size(batch, seqlen);
  using Form = Boundaries::Form;
  const bool value_a_token = boundaries.form == Form::position_indices || boundaries.form == Form::seq_idx;
  if (value_a_token) check_value_count(boundaries, batch, seqlen);

  MapBuilder builder(batch, seqlen);
  switch (boundaries.form) {
    case Form::position_indices:
      add_positions(builder, boundaries, batch, seqlen);
      break;
    case Form::seq_idx:
      add_labels(builder, boundaries, batch, seqlen);
      break;
    case Form::cu_seqlens:
      add_offsets(builder, boundaries, batch, seqlen);
      break;
    case Form::rows:
      for (std::int64_t row = 0; row < batch; ++row) builder.add_run(row, 0, seqlen);
      break;
  }
  return builder.finish();
}

}  // namespace packjit
