#include "runtime/boundaries.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace packjit {
namespace {

using Indices = std::vector<std::int32_t>;
using Form = Boundaries::Form;

HostTensor integers(ElementType type, std::vector<std::int64_t> shape, const std::vector<double>& values) {
  return HostTensor::from_double(type, std::move(shape), values);
}

template <class Act>
std::string message_of(Act act) {
  try {
    (void)act();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(KnownFaults, K01_NoBoundariesIsRefused) {
  EXPECT_EQ(
      message_of([] { return boundaries_from_tensors({}, false, 1, 16); }),
      "packed operators need boundaries, and none were given: add position_indices, seq_idx or cu_seqlens, or say "
      "that every row is one sequence (--rows)");
}

TEST(KnownFaults, K08_PositionsOfEveryWidth) {
  for (const ElementType type : {ElementType::int16, ElementType::uint16, ElementType::int32, ElementType::int64}) {
    const HostTensors tensors = {{"position_indices", integers(type, {2, 3}, {0, 1, 0, 0, 1, 2})}};
    const SequenceMap map = build_sequence_map(boundaries_from_tensors(tensors, false, 2, 3), 2, 3);
    EXPECT_EQ(map.slot, (Indices{0, 0, 1, 2, 2, 2})) << name_of(type);
  }
}

TEST(KnownFaults, K08_OtherDtypesAreNamed) {
  const HostTensors tensors = {{"position_indices", integers(ElementType::fp32, {1, 2}, {0, 1})}};
  EXPECT_EQ(message_of([&] { return boundaries_from_tensors(tensors, false, 1, 2); }),
            "position_indices has dtype fp32; expected int16, uint16, int32 or int64");
}

TEST(KnownFaults, K08_ASequenceLongerThanSixteenBitsHold) {
  constexpr std::int64_t kTokens = 70'000;
  std::vector<double> of_int16, of_uint16, exact;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    of_int16.push_back(static_cast<double>(t < 32766 ? t : 32766));
    of_uint16.push_back(static_cast<double>(t < 65534 ? t : 65534));
    exact.push_back(static_cast<double>(t));
  }
  // Then one sequence of two tokens, and padding.
  for (auto* values : {&of_int16, &of_uint16, &exact}) {
    values->push_back(0);
    values->push_back(1);
  }
  of_int16.push_back(-1);
  of_uint16.push_back(65535);
  exact.push_back(-1);
  const std::int64_t seqlen = kTokens + 3;
  const auto map_of = [&](ElementType type, const std::vector<double>& values) {
    const HostTensor tensor = integers(type, {1, seqlen}, values);
    return build_sequence_map(boundaries_from_tensor(Form::position_indices, tensor, 1, seqlen), 1, seqlen);
  };
  const SequenceMap map = map_of(ElementType::int64, exact);
  EXPECT_EQ(map.n_sequences, 2);
  EXPECT_EQ(map.max_seqlen, 70'000);
  EXPECT_EQ(map.run_index[69'999], 69'999);
  EXPECT_EQ(map.slot[70'002], -1);
  EXPECT_EQ(map_of(ElementType::int16, of_int16), map);
  EXPECT_EQ(map_of(ElementType::uint16, of_uint16), map);
}

TEST(KnownFaults, K08_ThirtyTwoBitPositionsDoNotSaturate) {
  const HostTensor tensor = integers(ElementType::int32, {1, 3}, {65533, 65534, 65535});
  EXPECT_EQ(build_sequence_map(boundaries_from_tensor(Form::position_indices, tensor, 1, 3), 1, 3).n_sequences, 1);
  const HostTensor stuck = integers(ElementType::int32, {1, 3}, {65533, 65534, 65534});
  EXPECT_THROW((void)build_sequence_map(boundaries_from_tensor(Form::position_indices, stuck, 1, 3), 1, 3),
               std::invalid_argument);
}

TEST(Boundaries, OffsetsOfSixteenBitsAreWhatTheyAre) {
  const HostTensor tensor = integers(ElementType::uint16, {3}, {0, 65534, 65535});
  EXPECT_EQ(boundaries_from_tensor(Form::cu_seqlens, tensor, 1, 65535).values,
            (std::vector<std::int64_t>{0, 65534, 65535}));
}

TEST(Boundaries, UnsignedPaddingInLabels) {
  const HostTensor tensor = integers(ElementType::uint16, {1, 3}, {65535, 8, 8});
  const Boundaries boundaries = boundaries_from_tensor(Form::seq_idx, tensor, 1, 3);
  EXPECT_EQ(build_sequence_map(boundaries, 1, 3).slot, (Indices{-1, 0, 0}));
}

TEST(Boundaries, ShapesMustFit) {
  const HostTensors flat = {{"seq_idx", integers(ElementType::int32, {6}, {0, 0, 0, 1, 1, 1})}};
  EXPECT_EQ(message_of([&] { return boundaries_from_tensors(flat, false, 2, 3); }),
            "seq_idx has shape (6); expected (batch, seqlen) = (2, 3)");
  const HostTensors nested = {{"cu_seqlens", integers(ElementType::int32, {1, 2}, {0, 6})}};
  EXPECT_EQ(message_of([&] { return boundaries_from_tensors(nested, false, 2, 3); }),
            "cu_seqlens has shape (1, 2); expected one dimension, (n_sequences + 1)");
}

TEST(Boundaries, FormsThatAgreeAreTaken) {
  const HostTensors tensors = {{"cu_seqlens", integers(ElementType::int64, {4}, {0, 2, 3, 6})},
                               {"position_indices", integers(ElementType::int16, {2, 3}, {0, 1, 0, 0, 1, 2})},
                               {"seq_idx", integers(ElementType::int32, {2, 3}, {1, 1, 2, 3, 3, 3})}};
  EXPECT_EQ(build_sequence_map(boundaries_from_tensors(tensors, false, 2, 3), 2, 3).slot, (Indices{0, 0, 1, 2, 2, 2}));
}

TEST(Boundaries, FormsThatDisagreeAreRefused) {
  HostTensors tensors = {{"cu_seqlens", integers(ElementType::int64, {4}, {0, 3, 5, 6})},
                         {"position_indices", integers(ElementType::int64, {2, 3}, {0, 1, 2, 0, 1, 2})}};
  EXPECT_EQ(
      message_of([&] { return boundaries_from_tensors(tensors, false, 2, 3); }),
      "two forms of boundaries disagree, first at row 1, token 2: token 2 of sequence 1 in position_indices, token 0 "
      "of sequence 2 in cu_seqlens; give one of them, or two that agree");
  tensors.erase("cu_seqlens");
  EXPECT_NO_THROW((void)boundaries_from_tensors(tensors, true, 2, 3));
  tensors["position_indices"] = integers(ElementType::int64, {2, 3}, {0, 1, -1, 0, 1, 2});
  EXPECT_EQ(
      message_of([&] { return boundaries_from_tensors(tensors, true, 2, 3); }),
      "two forms of boundaries disagree, first at row 0, token 2: padding in position_indices, token 2 of sequence 0 "
      "in rows; give one of them, or two that agree");
}

TEST(Boundaries, EmptySequencesBehindTheLastTokenAreADisagreementToo) {
  const HostTensors tensors = {{"cu_seqlens", integers(ElementType::int32, {3}, {0, 2, 2})}};
  EXPECT_EQ(
      message_of([&] { return boundaries_from_tensors(tensors, true, 1, 2); }),
      "two forms of boundaries disagree behind the last token: 2 sequences in cu_seqlens, 1 in rows, which differ in "
      "empty sequences; give one of them, or two that agree");
}

TEST(Boundaries, RowsHaveNoTensor) {
  EXPECT_THROW((void)boundaries_from_tensor(Form::rows, HostTensor::zeros(ElementType::int32, {1}), 1, 1),
               std::invalid_argument);
}

}  // namespace
}  // namespace packjit
