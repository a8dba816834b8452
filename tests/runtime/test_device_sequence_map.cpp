// Maps that the device builds, against those of the host, whose values sequence_map_test.cpp knows.
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "checking/random.hpp"
#include "tests/runtime/device_map_test.hpp"

namespace packjit {
namespace {

using checking::RandomStream;
using test::Batch;
using test::DeviceMap;
using test::Form;
using test::message_of;
using test::Placed;
using test::Values;

constexpr ElementType kIndexTypes[] = {ElementType::int16, ElementType::uint16, ElementType::int32, ElementType::int64};

TEST_P(DeviceMap, EveryFormAndType) {
  for (const ElementType type : kIndexTypes) {
    expect_as_on_host({Form::position_indices, type, 2, 4, {0, 1, 2, 0, 1, 0, 0, 1}});
    expect_as_on_host({Form::seq_idx, type, 1, 8, {7, 7, 3, 3, 3, 7, 0, 0}});
    expect_as_on_host({Form::cu_seqlens, type, 2, 4, {0, 3, 4, 6, 8}});
  }
  expect_as_on_host({Form::rows, ElementType::int32, 3, 5, {}});
}

// The same items as in ItemsCoverEveryTokenOnceLongestFirst, then two slots that nothing uses.
TEST_P(DeviceMap, ItemsAreLongestFirstThenUnusedSlots) {
  const Batch batch{Form::position_indices, ElementType::int32, 2, 5, {-1, 0, 1, -1, -7, 0, 1, 2, 0, 1}};
  DeviceSequenceMap map = make(batch, {2, 5, 5, 3}, 32);
  build(map, batch);
  const SequenceMap found = map.read();
  std::vector<std::array<int, 4>> items;
  for (const SequenceItem& item : found.items) items.push_back({item.row, item.start, item.length, item.slot});
  EXPECT_EQ(items,
            (std::vector<std::array<int, 4>>{
                {1, 0, 3, 1}, {0, 1, 2, 0}, {0, 3, 2, -1}, {1, 3, 2, 2}, {0, 0, 1, -1}, {1, 5, 0, 3}, {1, 5, 0, 4}}));
  EXPECT_EQ(found.slot, (std::vector<std::int32_t>{-1, 0, 0, -1, -1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(found.run_index, (std::vector<std::int32_t>{-1, 0, 1, -1, -1, 0, 1, 2, 0, 1}));
  EXPECT_NO_THROW(map.check());
}

TEST_P(DeviceMap, PaddingAndEmptySequences) {
  expect_as_on_host({Form::seq_idx, ElementType::int16, 1, 6, {5, -1, 5, -2, -3, 5}});
  expect_as_on_host({Form::seq_idx, ElementType::uint16, 1, 3, {65535, 8, 8}});
  expect_as_on_host({Form::position_indices, ElementType::uint16, 1, 4, {65535, 0, 1, 65535}});
  expect_as_on_host({Form::seq_idx, ElementType::int64, 2, 1, {-1, -1}});
  expect_as_on_host({Form::cu_seqlens, ElementType::int32, 2, 4, {0, 0, 2, 2, 4, 8, 8}});
  expect_as_on_host({Form::cu_seqlens, ElementType::uint16, 1, 65535, {0, 65534, 65535}}, 3, 65535, 256);
  // The most items there can be: padding on both sides of every sequence, and no slot unused.
  expect_as_on_host({Form::position_indices, ElementType::int32, 2, 5, {-1, 0, -1, 0, -1, -1, 0, -1, 0, -1}}, 4, 1);
}

TEST_P(DeviceMap, ARowMayContinueAnEarlierSequence) {
  expect_as_on_host({Form::position_indices, ElementType::int32, 2, 4, {5, 6, 0, 1, -1, 41, 42, 0}});
  expect_as_on_host({Form::position_indices, ElementType::int32, 3, 4, {0, 1, 2, 0, 1, 2, 3, 4, 5, -1, 0, 1}});
  // The first real token comes after a tile and more of padding.
  Values late(100, -1);
  for (std::size_t i = 70; i < 100; ++i) late[i] = static_cast<double>(i);
  expect_as_on_host({Form::position_indices, ElementType::int32, 1, 100, late});
  late[10] = 0;  // not the first any more
  expect_as_on_host({Form::position_indices, ElementType::int32, 1, 100, late});
}

TEST_P(DeviceMap, SixteenBitPositionsSaturate) {
  for (const auto& [type, last] : {std::pair{ElementType::int16, 32766.0}, {ElementType::uint16, 65534.0}}) {
    expect_as_on_host({Form::position_indices, type, 1, 6, {last - 1, last, last, last, 0, 1}});
    expect_as_on_host({Form::position_indices, type, 1, 2, {last, last - 1}});
  }
  expect_as_on_host({Form::position_indices, ElementType::int16, 1, 2, {32766, 32767}});
  expect_as_on_host({Form::position_indices, ElementType::int32, 1, 4, {32766, 32767, 32768, 0}});
  expect_as_on_host({Form::position_indices, ElementType::int32, 1, 3, {65533, 65534, 65534}});
}

TEST_P(DeviceMap, BrokenRulesAreToldInTheSameWords) {
  for (const ElementType type : kIndexTypes) {
    for (const Values& jump : std::vector<Values>{
             {0, 1, 2, 0, 1, 3}, {0, 0, 2, 0, 1, 2}, {3, 2, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}, {0, 1, 2, 0, 0, 7}}) {
      expect_as_on_host({Form::position_indices, type, 2, 3, jump});
    }
  }
  expect_as_on_host({Form::position_indices, ElementType::int32, 1, 3, {0, -1, 1}});
  for (const Values& offsets : std::vector<Values>{
           {1, 8}, {0, 3, 2, 8}, {0, 3}, {0, 3, 5, 8}, {0, 9, 8}, {0, -1, 8}, {0, 4, 9, 3, 8}, {3, 4, 7}}) {
    expect_as_on_host({Form::cu_seqlens, ElementType::int64, 2, 4, offsets});
  }
}

TEST_P(DeviceMap, LargestValuesDoNotOverflow) {
  // What a double cannot hold is written as bits.
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const auto found = [&](Form form, const std::vector<std::int64_t>& values) {
    HostTensor tensor = HostTensor::zeros(ElementType::int64, {2});
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    if (form != Form::cu_seqlens) tensor.shape = {1, 2};
    const Placed placed(device(), tensor);
    DeviceSequenceMap map(device(), form, ElementType::int64, {1, 2, 2, 2});
    map.build(placed.view);
    return message_of([&] { map.check(); });
  };
  EXPECT_EQ(found(Form::position_indices, {kMax - 1, kMax}), "nothing was thrown");
  EXPECT_EQ(
      found(Form::position_indices, {kMax, kMax}),
      "position_indices: row 0, token 1 has position 9223372036854775807; expected 9223372036854775808 (the run goes "
      "on), 0 (a new sequence) or a negative value (padding)");
  EXPECT_EQ(found(Form::seq_idx, {kMin, kMax}), "nothing was thrown");
  EXPECT_EQ(found(Form::cu_seqlens, {kMin, kMax}), "cu_seqlens[0] is -9223372036854775808; expected 0");
}

TEST_P(DeviceMap, MoreThanTheLimitsSayIsAViolation) {
  const Batch batch{Form::seq_idx, ElementType::int32, 1, 6, {1, 1, 1, 2, -1, 3}};
  expect_as_on_host(batch, 3, 3);
  expect_as_on_host(batch, 2, 3);
  expect_as_on_host(batch, 1, 3);
  expect_as_on_host(batch, 3, 2);
  DeviceSequenceMap map = make(batch, {1, 6, 2, 3}, 32);
  build(map, batch);
  EXPECT_EQ(message_of([&] { map.check(); }),
            "seq_idx: there are 3 sequences, more than max_sequences, which is 2; raise it");
  // Every token a sequence of its own, where there is room for one.
  Values all(300);
  std::iota(all.begin(), all.end(), 0.0);
  expect_as_on_host({Form::seq_idx, ElementType::int32, 1, 300, all}, 1, 300);
  expect_as_on_host({Form::seq_idx, ElementType::int32, 1, 300, all}, 300, 300);
  // How many offsets and rows there are, the host sees.
  const Batch offsets{Form::cu_seqlens, ElementType::int32, 1, 4, {0, 2, 4}};
  EXPECT_EQ(message_of([&] {
              DeviceSequenceMap few = make(offsets, {1, 4, 1, 4}, 32);
              build(few, offsets);
            }),
            "cu_seqlens: there are 2 sequences, more than max_sequences, which is 1; raise it");
  EXPECT_EQ(message_of([&] {
              (void)DeviceSequenceMap(device(), Form::rows, ElementType::int32, {3, 4, 2, 4});
            }),
            "rows: there are 3 sequences, more than max_sequences, which is 2; raise it");
  EXPECT_EQ(
      message_of([&] {
        (void)DeviceSequenceMap(device(), Form::rows, ElementType::int32, {3, 4, 0, 4});
      }),
      "a map of at most 0 sequences of at most 4 tokens in 3 rows; expected 1 to 1073739774 sequences of at least "
      "1 token");
}

TEST_P(DeviceMap, CheckTellsTheFirstViolationOnce) {
  const auto batch = [](Values values) {
    return Batch{Form::position_indices, ElementType::int32, 1, 3, std::move(values)};
  };
  DeviceSequenceMap map = make(batch({}), {1, 3, 3, 3}, 32);
  build(map, batch({0, 1, 7}));
  build(map, batch({0, 5, 0}));
  build(map, batch({0, 1, 0}));
  const std::string message = message_of([&] { map.check(); });
  EXPECT_NE(message.find("token 2 has position 7"), std::string::npos) << message;
  EXPECT_NO_THROW(map.check());
  EXPECT_EQ(map.read().slot, (std::vector<std::int32_t>{0, 0, 1}));  // of the last batch
}

TEST_P(DeviceMap, WrongTensorsAreRefused) {
  DeviceSequenceMap map(device(), Form::seq_idx, ElementType::int32, {2, 3, 6, 3});
  TensorView view{nullptr, ElementType::int64, {2, 3}, {3, 1}};
  EXPECT_EQ(message_of([&] { map.build(view); }), "seq_idx has dtype int64; the map was made for int32");
  view.type = ElementType::int32;
  view.size = {3, 2};
  EXPECT_EQ(message_of([&] { map.build(view); }), "seq_idx has shape (3, 2); expected (batch, seqlen) = (2, 3)");
  view.size = {2, 3};
  view.stride = {1, 2};
  EXPECT_EQ(message_of([&] { map.build(view); }),
            "seq_idx has stride 2 in dimension 1, expected 1: boundaries are dense; copy them first");
}

/// A batch of random stretches; sometimes one value is changed, which may break a rule.
Batch random_batch(RandomStream& random, Form form, ElementType type) {
  Batch batch{form, type, random.integer(1, 4), random.integer(1, 150), {}};
  const bool ends = form == Form::cu_seqlens;
  if (ends) batch.values.push_back(0);
  for (std::int64_t row = 0; row < batch.batch && form != Form::rows; ++row) {
    bool first = true;
    const std::int64_t longest = random.integer(1, batch.seqlen);
    for (std::int64_t t = 0; t < batch.seqlen;) {
      const std::int64_t length = std::min(random.integer(ends ? 0 : 1, longest), batch.seqlen - t);
      const bool padding = random.integer(0, 3) == 0;
      const std::int64_t from = first && random.integer(0, 1) == 0 ? random.integer(1, 1000) : 0;
      const double label = static_cast<double>(random.integer(0, 3));
      for (std::int64_t i = 0; i < length && !ends; ++i) {
        const double nothing = type == ElementType::uint16 ? 65535 : -static_cast<double>(random.integer(1, 9));
        const double value = form == Form::seq_idx ? label : static_cast<double>(from + i);
        batch.values.push_back(padding ? nothing : value);
      }
      first = first && padding;
      t += length;
      if (ends) batch.values.push_back(static_cast<double>(row * batch.seqlen + t));
    }
  }
  if (ends && random.integer(0, 1) == 0) batch.values.push_back(batch.values.back());
  return batch;
}

TEST_P(DeviceMap, RandomBatches) {
  RandomStream random(5, "device maps");
  for (int round = 0; round < 25; ++round) {
    for (const Form form : {Form::position_indices, Form::seq_idx, Form::cu_seqlens, Form::rows}) {
      for (const ElementType type : kIndexTypes) {
        Batch batch = random_batch(random, form, type);
        if (round % 3 == 2 && form != Form::rows) {
          const std::int64_t at = random.integer(0, static_cast<std::int64_t>(batch.values.size()) - 1);
          batch.values[static_cast<std::size_t>(at)] = static_cast<double>(random.integer(0, 200));
          expect_as_on_host(batch);
        } else {
          const SequenceMap map = batch.on_host();
          const std::int64_t sequences = std::max<std::int64_t>(map.n_sequences, 1);
          // Offsets and rows beyond the limit are refused before anything is built.
          const bool counted = form == Form::cu_seqlens || form == Form::rows;
          const std::int64_t most =
              random.integer(counted ? sequences : std::max<std::int64_t>(sequences - 1, 1), sequences + 4);
          expect_as_on_host(batch, most, std::max<std::int64_t>(map.max_seqlen - random.integer(0, 1), 1),
                            round % 2 == 0 ? 32 : 64);
        }
      }
    }
  }
}

std::string label_of(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Host, DeviceMap, testing::Values("host", "host_reverse", "host_seeded"), label_of);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceMap, testing::Values("cuda"), label_of);

}  // namespace
}  // namespace packjit
