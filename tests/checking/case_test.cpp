#include "checking/case.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "checking/inputs.hpp"
#include "checking/matrix.hpp"

namespace packjit::checking {
namespace {

using Form = Boundaries::Form;
using Integers = std::vector<std::int64_t>;

Case conv_case(const std::vector<Integers>& rows) {
  Case c;
  c.op = Operator::conv1d_pack_fwd;
  c.dim = 2;
  for (const Integers& row : rows) c.rows.push_back(row_of(row));
  return c;
}

TEST(Case, SequencesAreNumberedByFirstToken) {
  const std::vector<Sequence> sequences = sequences_of(conv_case({{-2, 3, 1}, {6}}));
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[0].start, 2);
  EXPECT_EQ(sequences[0].length, 3);
  EXPECT_EQ(sequences[1].start, 5);
  EXPECT_EQ(sequences[2].row, 1);
  EXPECT_EQ(sequences[2].length, 6);
}

TEST(Case, BoundariesInEachForm) {
  const Case padded = conv_case({{3, 2, -1}});
  EXPECT_EQ(boundaries_of(padded, Form::position_indices)->values, (Integers{0, 1, 2, 0, 1, -1}));
  EXPECT_EQ(boundaries_of(padded, Form::seq_idx)->values, (Integers{6, 6, 6, 3, 3, -1}));
  EXPECT_FALSE(boundaries_of(padded, Form::cu_seqlens));
  EXPECT_FALSE(boundaries_of(padded, Form::rows));
  const Case full = conv_case({{3, 2}, {5}});
  EXPECT_EQ(boundaries_of(full, Form::cu_seqlens)->values, (Integers{0, 3, 5, 10}));
  EXPECT_FALSE(boundaries_of(full, Form::rows));
  EXPECT_TRUE(boundaries_of(conv_case({{5}, {5}}), Form::rows));
}

TEST(Case, RefusesRowsOfDifferentLengthsAndSizesOutOfRange) {
  EXPECT_THROW(validate(conv_case({{3}, {4}})), std::invalid_argument);
  EXPECT_THROW(validate(conv_case({})), std::invalid_argument);
  EXPECT_THROW(validate(conv_case({{-4}})), std::invalid_argument);
  Case c = conv_case({{4}});
  c.conv_width = 17;
  EXPECT_THROW(validate(c), std::invalid_argument);
}

TEST(Case, TensorsDivideByTokenBySlotOrNotAtAll) {
  Case c;
  EXPECT_EQ(extent_of(c, "dB"), Extent::token);
  EXPECT_EQ(extent_of(c, "dinitial_states"), Extent::slot);
  EXPECT_EQ(extent_of(c, "dA"), Extent::shared);
  EXPECT_EQ(extent_of(c, "weight"), Extent::shared);
  c.constant_B = true;
  EXPECT_EQ(extent_of(c, "dB"), Extent::shared);
  EXPECT_EQ(extent_of(c, "dC"), Extent::token);
  EXPECT_TRUE(is_activation("dout"));
  EXPECT_FALSE(is_activation("C"));
}

TEST(Inputs, AreTheSameForTheSameSeedAndHoldTheStepInItsRange) {
  Case c = conv_case({{3, 4}});
  c.op = Operator::ssm_pack_bwd;
  c.delta_bias = false;
  const HostTensors inputs = make_inputs(c), again = make_inputs(c);
  ASSERT_EQ(inputs.size(), 8u);  // u, delta, A, B, C, D, z and dout
  for (const auto& [name, tensor] : inputs) EXPECT_EQ(tensor.bytes, again.at(name).bytes) << name;
  // softplus(delta) between 0.001 and 0.1: delta between -6.907 and -2.253.
  for (const double delta : inputs.at("delta").to_double()) {
    EXPECT_GT(delta, -6.908);
    EXPECT_LT(delta, -2.252);
  }
  for (const double a : inputs.at("A").to_double()) EXPECT_LT(a, -0.49);
  c.seed = 2;
  EXPECT_NE(make_inputs(c).at("u").bytes, inputs.at("u").bytes);
}

TEST(Inputs, SwapOfTokenAndChannel) {
  const HostTensor tensor = HostTensor::from_double(ElementType::bf16, {1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const HostTensor swapped = swap_token_and_channel(tensor);
  EXPECT_EQ(swapped.shape, (Integers{1, 3, 2}));
  EXPECT_EQ(swapped.to_double(), (std::vector<double>{1, 4, 2, 5, 3, 6}));
}

TEST(TellingRows, HoldTheLengthsThatMeetBoundaries) {
  const std::vector<Row> rows = telling_rows(4, 32, 1, true);
  ASSERT_EQ(rows.size(), 3u);
  std::int64_t seen = 0;
  for (const Stretch& stretch : rows[0]) {
    if (stretch.padding) continue;
    for (const std::int64_t length : {1, 3, 4, 5, 31, 32, 33}) seen += stretch.length == length ? 1 : 0;
  }
  EXPECT_EQ(seen, 7);
  EXPECT_TRUE(rows[0].front().padding);
  EXPECT_TRUE(rows[0].back().padding);
  EXPECT_EQ(rows[2].size(), 2u);
}

}  // namespace
}  // namespace packjit::checking
