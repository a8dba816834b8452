#include "runtime/sequence_map.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace packjit {
namespace {

using Values = std::vector<std::int64_t>;
using Indices = std::vector<std::int32_t>;
using Form = Boundaries::Form;

SequenceMap positions(Values values, std::int64_t batch, std::int64_t seqlen, std::int64_t saturation = 0) {
  return build_sequence_map({Form::position_indices, std::move(values), saturation}, batch, seqlen);
}
SequenceMap labels(Values values, std::int64_t batch, std::int64_t seqlen) {
  return build_sequence_map({Form::seq_idx, std::move(values), 0}, batch, seqlen);
}
SequenceMap offsets(Values values, std::int64_t batch, std::int64_t seqlen) {
  return build_sequence_map({Form::cu_seqlens, std::move(values), 0}, batch, seqlen);
}
SequenceMap rows(std::int64_t batch, std::int64_t seqlen) {
  return build_sequence_map({Form::rows, {}, 0}, batch, seqlen);
}

/// {row, start, length, slot} of every item, in the map's order.
std::vector<std::array<int, 4>> items_of(const SequenceMap& map) {
  std::vector<std::array<int, 4>> items;
  for (const SequenceItem& item : map.items) items.push_back({item.row, item.start, item.length, item.slot});
  return items;
}
using Items = std::vector<std::array<int, 4>>;

template <class Act>
std::string message_of(Act act) {
  try {
    (void)act();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(SequenceMap, PositionsThatRiseByOneAreARun) {
  const SequenceMap map = positions({0, 1, 2, 0, 1, 0, 0, 1}, 2, 4);
  EXPECT_EQ(map.batch, 2);
  EXPECT_EQ(map.seqlen, 4);
  EXPECT_EQ(map.n_sequences, 5);
  EXPECT_EQ(map.max_seqlen, 3);
  EXPECT_EQ(map.run_index, (Indices{0, 1, 2, 0, 0, 0, 0, 1}));
  EXPECT_EQ(map.slot, (Indices{0, 0, 0, 1, 2, 3, 4, 4}));
}

TEST(SequenceMap, EqualLabelsAreARun) {
  const SequenceMap map = labels({7, 7, 3, 3, 3, 7, 0, 0}, 1, 8);
  EXPECT_EQ(map.run_index, (Indices{0, 1, 0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(map.slot, (Indices{0, 0, 1, 1, 1, 2, 3, 3}));
  EXPECT_EQ(map.max_seqlen, 3);
}

TEST(SequenceMap, RowsAreSequencesWhenSaid) {
  const SequenceMap map = rows(2, 3);
  EXPECT_EQ(map.run_index, (Indices{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(map.slot, (Indices{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(items_of(map), (Items{{0, 0, 3, 0}, {1, 0, 3, 1}}));
}

TEST(SequenceMap, ItemsCoverEveryTokenOnceLongestFirst) {
  // Row 0: one token of padding, 2 tokens, 2 of padding; row 1: 3 tokens, 2 tokens.
  const SequenceMap map = positions({-1, 0, 1, -1, -7, 0, 1, 2, 0, 1}, 2, 5);
  EXPECT_EQ(items_of(map), (Items{{1, 0, 3, 1}, {0, 1, 2, 0}, {0, 3, 2, -1}, {1, 3, 2, 2}, {0, 0, 1, -1}}));
  EXPECT_EQ(map.n_sequences, 3);
  EXPECT_EQ(map.slot, (Indices{-1, 0, 0, -1, -1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(map.run_index, (Indices{-1, 0, 1, -1, -1, 0, 1, 2, 0, 1}));
}

TEST(SequenceMap, PaddingEndsARunOfEqualLabels) {
  const SequenceMap map = labels({5, -1, 5, -2, -3, 5}, 1, 6);
  EXPECT_EQ(map.slot, (Indices{0, -1, 1, -1, -1, 2}));
  EXPECT_EQ(items_of(map), (Items{{0, 3, 2, -1}, {0, 0, 1, 0}, {0, 1, 1, -1}, {0, 2, 1, 1}, {0, 5, 1, 2}}));
}

TEST(SequenceMap, NothingButPadding) {
  const SequenceMap map = labels({-1, -1}, 2, 1);
  EXPECT_EQ(map.n_sequences, 0);
  EXPECT_EQ(map.max_seqlen, 0);
  EXPECT_EQ(items_of(map), (Items{{0, 0, 1, -1}, {1, 0, 1, -1}}));
}

TEST(SequenceMap, OffsetsGiveEmptySequencesASlot) {
  const SequenceMap map = offsets({0, 0, 2, 2, 4, 8, 8}, 2, 4);
  EXPECT_EQ(map.n_sequences, 6);
  EXPECT_EQ(map.slot, (Indices{1, 1, 3, 3, 4, 4, 4, 4}));
  EXPECT_EQ(items_of(map), (Items{{1, 0, 4, 4}, {0, 0, 2, 1}, {0, 2, 2, 3}, {0, 0, 0, 0}, {0, 2, 0, 2}, {1, 4, 0, 5}}));
}

TEST(SequenceMap, ARowMayContinueAnEarlierSequence) {
  const SequenceMap map = positions({5, 6, 0, 1, -1, 41, 42, 0}, 2, 4);
  EXPECT_EQ(map.run_index, (Indices{0, 1, 0, 1, -1, 0, 1, 0}));
  EXPECT_EQ(map.slot, (Indices{0, 0, 1, 1, -1, 2, 2, 3}));
}

TEST(SequenceMap, SixteenBitPositionsSaturate) {
  const SequenceMap map = positions({9, 10, 10, 10, 0, 1}, 1, 6, 10);
  EXPECT_EQ(map.run_index, (Indices{0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(map.slot, (Indices{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(
      message_of([] {
        return positions({10, 11}, 1, 2, 10);
      }),
      "position_indices: row 0, token 1 has position 11, which is above 10, where positions of this width saturate");
  EXPECT_EQ(message_of([] {
              return positions({10, 9}, 1, 2, 10);
            }),
            "position_indices: row 0, token 1 has position 9; expected 10 (the run goes on), 0 (a new sequence) or a "
            "negative value (padding)");
  // Without saturation a position that repeats is a jump.
  EXPECT_THROW((void)positions({9, 10, 10}, 1, 3), std::invalid_argument);
}

TEST(SequenceMap, RefusesPositionsThatJump) {
  EXPECT_EQ(message_of([] {
              return positions({0, 1, 2, 0, 1, 3}, 2, 3);
            }),
            "position_indices: row 1, token 2 has position 3; expected 2 (the run goes on), 0 (a new sequence) or a "
            "negative value (padding)");
  EXPECT_THROW((void)positions({0, 0, 2}, 1, 3), std::invalid_argument);
  EXPECT_THROW((void)positions({3, 2}, 1, 2), std::invalid_argument);
  EXPECT_THROW((void)positions({1, 1}, 1, 2), std::invalid_argument);
}

TEST(SequenceMap, RefusesToContinueAfterPadding) {
  EXPECT_EQ(message_of([] {
              return positions({0, -1, 1}, 1, 3);
            }),
            "position_indices: row 0, token 2 has position 1; expected 0 (a sequence that starts after padding cannot "
            "continue an earlier one) or padding");
}

TEST(SequenceMap, LargestPositionsDoNotOverflow) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(positions({kMax - 1, kMax}, 1, 2).n_sequences, 1);
  EXPECT_EQ(
      message_of([] {
        return positions({kMax, kMax}, 1, 2);
      }),
      "position_indices: row 0, token 1 has position 9223372036854775807; expected 9223372036854775808 (the run goes "
      "on), 0 (a new sequence) or a negative value (padding)");
  EXPECT_EQ(labels({std::numeric_limits<std::int64_t>::min(), kMax}, 1, 2).slot, (Indices{-1, 0}));
}

TEST(SequenceMap, RefusesOffsetsThatBreakTheRules) {
  EXPECT_EQ(message_of([] { return offsets({1, 4}, 1, 4); }), "cu_seqlens[0] is 1; expected 0");
  EXPECT_EQ(message_of([] {
              return offsets({0, 3, 2, 4}, 1, 4);
            }),
            "cu_seqlens[2] is 2, below cu_seqlens[1], which is 3; expected offsets that do not decrease");
  EXPECT_EQ(message_of([] {
              return offsets({0, 3}, 1, 4);
            }),
            "cu_seqlens[1], the last offset, is 3; expected the token count 4 (batch 1 x seqlen 4)");
  EXPECT_EQ(
      message_of([] {
        return offsets({0, 3, 5, 8}, 2, 4);
      }),
      "cu_seqlens: the sequence from 3 to 5 crosses the start of row 1, at 4; expected an offset at every row start");
  EXPECT_EQ(message_of([] { return offsets({0}, 1, 4); }),
            "cu_seqlens has 1 offsets; expected at least 2, from 0 to the token count 4");
  EXPECT_EQ(message_of([] {
              return offsets({0, 9, 4}, 1, 4);
            }),
            "cu_seqlens[1] is 9, beyond the token count 4 (batch 1 x seqlen 4)");
  EXPECT_EQ(message_of([] {
              return offsets({0, -1, 4}, 1, 4);
            }),
            "cu_seqlens[1] is -1, below cu_seqlens[0], which is 0; expected offsets that do not decrease");
}

TEST(SequenceMap, RefusesSizesOutOfRange) {
  EXPECT_THROW((void)rows(0, 4), std::invalid_argument);
  EXPECT_THROW((void)rows(4, 0), std::invalid_argument);
  EXPECT_THROW((void)rows(-1, 4), std::invalid_argument);
  EXPECT_THROW((void)rows(1, std::int64_t{1} << 31), std::invalid_argument);
  EXPECT_THROW((void)rows(1, 2147483647 - 4095), std::invalid_argument);  // a tile beyond the end would not fit
  EXPECT_THROW((void)rows(std::int64_t{1} << 31, 1), std::invalid_argument);
  // A claim of more tokens than there are values is refused before memory is taken for it.
  EXPECT_EQ(message_of([] {
              return labels({1, 2}, 2147479551, 2147479551);
            }),
            "seq_idx has 2 values; expected 4611668421963161601 (batch 2147479551 x seqlen 2147479551)");
}

TEST(SequenceMap, FormsThatExpressTheSameRowsGiveEqualMaps) {
  const SequenceMap by_position = positions({0, 1, 2, 0, 0, 1, 0, 1}, 2, 4);
  EXPECT_EQ(by_position, labels({4, 4, 4, 9, 9, 9, 2, 2}, 2, 4));
  EXPECT_EQ(by_position, offsets({0, 3, 4, 6, 8}, 2, 4));
  EXPECT_EQ(rows(3, 2), offsets({0, 2, 4, 6}, 3, 2));
  EXPECT_EQ(rows(3, 2), labels({1, 1, 1, 1, 1, 1}, 3, 2));
  EXPECT_EQ(positions({-1, 0, 1, -1}, 1, 4), labels({-5, 3, 3, -1}, 1, 4));
  EXPECT_FALSE(by_position == labels({4, 4, 9, 9, 9, 9, 2, 2}, 2, 4));
  // An empty sequence is a state of its own, so these differ.
  EXPECT_FALSE(rows(1, 2) == offsets({0, 2, 2}, 1, 2));
}

// Lengths 5, 2, 4 and 5 tokens of padding in a row of 16.
TEST(KnownFaults, K01_BoundariesCutThePack) {
  const SequenceMap map = positions({0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, -1, -1, -1, -1, -1}, 1, 16);
  EXPECT_EQ(items_of(map), (Items{{0, 0, 5, 0}, {0, 11, 5, -1}, {0, 7, 4, 2}, {0, 5, 2, 1}}));
}

// Three rows with different lengths; the last sequence of a row and the first of the next never join, whatever the
// form.
TEST(KnownFaults, K10_RowsNeverJoin) {
  const Items expected = {{1, 0, 4, 2}, {0, 0, 3, 0}, {2, 2, 2, 4}, {0, 3, 1, 1}, {2, 0, 1, 3}, {2, 1, 1, -1}};
  EXPECT_EQ(items_of(labels({1, 1, 1, 2, 2, 2, 2, 2, 2, -1, 3, 3}, 3, 4)), expected);
  // Row 1 and row 2 both continue an earlier sequence, with positions that would rise across the row start.
  EXPECT_EQ(items_of(positions({0, 1, 2, 0, 1, 2, 3, 4, 5, -1, 0, 1}, 3, 4)), expected);
}

// Padding on both sides and between: only real tokens have slots.
TEST(KnownFaults, K09_PaddingBelongsToNoSequence) {
  const SequenceMap map = labels({-1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1}, 1, 17);
  EXPECT_EQ(items_of(map), (Items{{0, 5, 7, 0}, {0, 0, 5, -1}, {0, 12, 5, -1}}));
}

}  // namespace
}  // namespace packjit
