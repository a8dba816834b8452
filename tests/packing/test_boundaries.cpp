#include "packing/boundaries.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace packjit {
namespace {

const Row kPaddedRow{{{0, 0, 3, false, true}, {1, 0, 2, false, false}}};
const Row kFullRow{{{2, 0, 8, false, false}}};
const Row kContinuingRow{{{3, 0, 4, false, false}, {0, 3, 2, true, false}}};

TEST(Boundaries, PositionsRestartAtEveryPieceAndPaddingIsMinusOne) {
  EXPECT_EQ(position_indices(kPaddedRow, 8), (std::vector<std::int32_t>{0, 1, 2, 0, 1, -1, -1, -1}));
  EXPECT_EQ(position_indices(kFullRow, 8), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(position_indices(kContinuingRow, 6), (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(position_indices(Call{{kPaddedRow, kContinuingRow}}, 6),
            (std::vector<std::int32_t>{0, 1, 2, 0, 1, -1, 0, 1, 2, 3, 0, 1}));
}

TEST(Boundaries, LabelsAreSlotsAndDocumentsAreNamedTokenByToken) {
  EXPECT_EQ(seq_idx(Call{{kPaddedRow, kContinuingRow}}, 6),
            (std::vector<std::int32_t>{0, 0, 0, 1, 1, -1, 2, 2, 2, 2, 3, 3}));
  EXPECT_EQ(document_ids(Call{{kPaddedRow, kContinuingRow}}, 6),
            (std::vector<std::int64_t>{0, 0, 0, 1, 1, -1, 3, 3, 3, 3, 0, 0}));
  EXPECT_THROW((void)seq_idx(Call{{kFullRow}}, 7), std::invalid_argument);
  EXPECT_THROW((void)document_ids(Call{{kFullRow}}, 7), std::invalid_argument);
}

TEST(Boundaries, OffsetsHaveOneAtEveryRowStartAndEndAtTheTokenCount) {
  EXPECT_EQ(cu_seqlens(Call{{kPaddedRow, kFullRow}}, 8), (std::vector<std::int64_t>{0, 3, 5, 8, 16}));
  EXPECT_EQ(cu_seqlens(Call{{kFullRow, kPaddedRow}}, 8), (std::vector<std::int64_t>{0, 8, 11, 13, 16}));
}

TEST(Boundaries, EachTokenKnowsItsPlaceInItsDocument) {
  const Call call{{Row{{{3, 5, 2, true, true}, {1, 0, 1, false, false}}}, Row{}}};
  EXPECT_EQ(document_offsets(call, 4), (std::vector<std::int64_t>{5, 6, 0, -1, -1, -1, -1, -1}));
}

TEST(Boundaries, HandoversNameTheSlotsOfBothCalls) {
  PackPlan plan;
  plan.options.pack_length = 8;
  plan.documents = 4;
  plan.calls = {Call{{kFullRow, kPaddedRow}}, Call{{kContinuingRow}}};
  EXPECT_EQ(state_handovers(plan, SlotNumbering::position_indices), (std::vector<StateHandover>{{0, {0, 1}, {1, 1}}}));
  plan.calls = {Call{{kPaddedRow, kFullRow}}, Call{{Row{{{1, 0, 1, false, false}}}, kContinuingRow}}};
  // With positions the slots of call 1 are document 1, 3, 0; with offsets padding after document 1 is slot 1.
  EXPECT_EQ(state_handovers(plan, SlotNumbering::position_indices), (std::vector<StateHandover>{{0, {0, 0}, {1, 2}}}));
  EXPECT_EQ(state_handovers(plan, SlotNumbering::cu_seqlens), (std::vector<StateHandover>{{0, {0, 0}, {1, 3}}}));
}

TEST(Boundaries, ARowLongerThanThePackIsRefused) {
  EXPECT_THROW((void)position_indices(kFullRow, 7), std::invalid_argument);
  EXPECT_THROW((void)cu_seqlens(Call{{kFullRow}}, 7), std::invalid_argument);
}

}  // namespace
}  // namespace packjit
