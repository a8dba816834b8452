// Maps that the device builds, against those of the host, whose values sequence_map_test.cpp knows.
#include "runtime/device_sequence_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checking/random.hpp"
#include "generator/sequence_map.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/errors.hpp"
#include "tests/message_of.hpp"

namespace packjit {
namespace {

using test::message_of;

using Form = Boundaries::Form;
using Values = std::vector<double>;
using checking::RandomStream;

constexpr ElementType kIndexTypes[] = {ElementType::int16, ElementType::uint16, ElementType::int32, ElementType::int64};

std::unique_ptr<Device> open_ordered(const std::string& name) {
  if (name == "host_reverse") return open_host_device({HostOrder::Kind::reverse, 0});
  if (name == "host_seeded") return open_host_device({HostOrder::Kind::seeded, 7});
  return open_device(name);
}

/// One batch of boundaries, as a caller has them.
struct Batch {
  Form form;
  ElementType type;
  std::int64_t batch, seqlen;
  Values values;

  [[nodiscard]] HostTensor tensor() const {
    const auto count = static_cast<std::int64_t>(values.size());
    return HostTensor::from_double(type, form == Form::cu_seqlens ? std::vector{count} : std::vector{batch, seqlen},
                                   values);
  }
  [[nodiscard]] SequenceMap on_host() const {
    const Boundaries boundaries =
        form == Form::rows ? Boundaries{} : boundaries_from_tensor(form, tensor(), batch, seqlen);
    return build_sequence_map(boundaries, batch, seqlen);
  }
};

std::string text_of(const Batch& batch) {
  std::string text = std::string(name_of(batch.form)) + " " + std::string(name_of(batch.type)) + " " +
                     std::to_string(batch.batch) + " x " + std::to_string(batch.seqlen) + ":";
  for (const double value : batch.values) text += " " + std::to_string(static_cast<long long>(value));
  return text.substr(0, 2000);
}

/// Boundaries copied to the device, with the view that build() takes.
struct Placed {
  Placed(Device& device, const HostTensor& tensor) : buffer(device, std::max<std::size_t>(1, tensor.bytes.size())) {
    view.type = tensor.type;
    view.size = tensor.shape;
    view.stride.assign(tensor.shape.size(), 1);
    for (std::size_t i = tensor.shape.size(); i-- > 1;) view.stride[i - 1] = view.stride[i] * view.size[i];
    view.data = buffer.data();
    if (!tensor.bytes.empty()) device.write(buffer.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  Buffer buffer;
  TensorView view;
};

/// Parametrised by device and thread order; skipped, with the reason, where there is no GPU.
class DeviceMap : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    static std::map<std::string, std::shared_ptr<Device>> devices;  // one a process: compiled kernels are shared
    std::shared_ptr<Device>& device = devices[GetParam()];
    if (!device) {
      try {
        device = open_ordered(GetParam());
      } catch (const EnvironmentError& error) {
        if (GetParam() != "cuda") throw;
        GTEST_SKIP() << error.what();
      }
    }
    device_ = device;
  }
  [[nodiscard]] Device& device() { return *device_; }

  [[nodiscard]] DeviceSequenceMap make(const Batch& batch, const MapLimits& limits, int block,
                                       MapStorage storage = MapStorage::positions) {
    Config config(Operator::sequence_map);
    config.values.set("block", block);
    return {device(), batch.form, batch.type, limits, storage, config};
  }
  void build(DeviceSequenceMap& map, const Batch& batch) {
    if (batch.form == Form::rows) return map.build();
    const Placed placed(device(), batch.tensor());
    map.build(placed.view);
    device().synchronize();
  }

  /// The device's map is the host's, or both refuse it in the same words and the device maps padding alone.
  void expect_as_on_host(const Batch& batch, std::int64_t max_sequences, std::int64_t max_seqlen, int block = 32) {
    SCOPED_TRACE(text_of(batch));
    const MapLimits limits{batch.batch, batch.seqlen, max_sequences, max_seqlen};
    std::optional<SequenceMap> expected;
    const std::string refusal = message_of([&] { expected = with_unused_slots(batch.on_host(), batch.form, limits); });
    DeviceSequenceMap map = make(batch, limits, block);
    build(map, batch);
    const SequenceMap found = map.read();
    EXPECT_EQ(message_of([&] { map.check(); }), refusal);
    device().check_guards();
    if (!expected) {
      const Values padding(static_cast<std::size_t>(batch.batch * batch.seqlen), -1);
      const Batch nothing{Form::seq_idx, ElementType::int32, batch.batch, batch.seqlen, padding};
      expected = with_unused_slots(nothing.on_host(), Form::seq_idx, limits);
    }
    EXPECT_EQ(found.items.size(), expected->items.size());
    EXPECT_TRUE(found == *expected);
  }
  void expect_as_on_host(const Batch& batch) {
    const auto tokens = static_cast<std::int64_t>(batch.values.size());
    expect_as_on_host(batch, std::max(tokens, batch.batch), batch.seqlen);
  }

 private:
  std::shared_ptr<Device> device_;
};

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

// --- operators on such a map ---

/// One operator with states, on random tensors of dim 8 in device memory.
class OperatorCall {
 public:
  OperatorCall(Device& device, Operator op, const MapLimits& limits, int conv_width = 4,
               MapStorage storage = MapStorage::positions)
      : device_(device), spec_(op), config_(op) {
    spec_.values.set("dtype", static_cast<int>(Dtype::fp32));
    if (!is_scan(op)) {
      spec_.values.set("conv_width", conv_width);
      spec_.values.set("map", static_cast<int>(storage));
    }
    for (const char* states : {"initial_states", "final_states"}) spec_.values.set(states, 1);
    Sizes sizes;
    sizes.batch = limits.batch;
    sizes.seqlen = limits.seqlen;
    sizes.n_sequences = limits.max_sequences;
    sizes.dim = 8;
    sizes.groups = 1;
    sizes.d_state = 16;
    sizes.conv_width = conv_width;
    sizes.history = conv_width - 1;
    RandomStream random(3, name_of(op));
    for (const TensorRule& rule : tensor_rules(op)) {
      if (!rule.field.empty() && spec_.values[rule.field] == 0) continue;
      std::vector<std::int64_t> shape;
      for (const std::string_view symbol : shape_symbols(rule.shape)) shape.push_back(sizes[symbol]);
      Values values(static_cast<std::size_t>(count_of(shape)));
      for (double& value : values) value = rule.name == "A" ? -random.uniform() : random.normal();
      const HostTensor tensor = HostTensor::from_double(ElementType::fp32, shape, values);
      placed_.emplace(rule.name, Placed(device, tensor));
      if (rule.output) outputs_.emplace(rule.name, tensor);
    }
    for (const auto& [name, placed] : placed_) views_.emplace(name, placed.view);
    config_ = builtin_config(spec_, device.info().arch);
    specialise(spec_, config_, views_);
  }
  void launch(const MappedSequences& sequences) {
    run_operator(device_, spec_, config_, views_, sequences, workspace_);
  }
  void poison_outputs() {
    for (const auto& entry : outputs_) {
      const Buffer& buffer = placed_.at(entry.first).buffer;
      device_.fill(buffer.data(), 0xFF, buffer.size());
    }
  }
  [[nodiscard]] HostTensors outputs() {
    for (auto& [name, tensor] : outputs_) {
      device_.read(tensor.bytes.data(), placed_.at(name).buffer.data(), tensor.bytes.size());
    }
    return outputs_;
  }
  [[nodiscard]] HostTensor tensor(const std::string& name, HostTensor like) {
    device_.read(like.bytes.data(), placed_.at(name).buffer.data(), like.bytes.size());
    return like;
  }

 private:
  Device& device_;
  Spec spec_;
  Config config_;
  std::map<std::string, Placed, std::less<>> placed_;
  TensorViews views_;
  HostTensors outputs_;
  Buffer workspace_;
};

/// What the operator gives for the batch with a map that the host built, on a launch of the same shape.
HostTensors outputs_with_host_map(Device& device, OperatorCall& call, const Batch& batch, const MapLimits& limits) {
  MappedSequences sequences(device, with_unused_slots(batch.on_host(), batch.form, limits));
  sequences.items = most_items(limits.batch, limits.max_sequences);
  call.poison_outputs();
  call.launch(sequences);
  return call.outputs();
}

void expect_same_bytes(const HostTensors& found, const HostTensors& expected) {
  ASSERT_FALSE(found.empty());
  for (const auto& [name, tensor] : found) EXPECT_TRUE(tensor.bytes == expected.at(name).bytes) << name;
}

constexpr MapLimits kLimits{2, 40, 6, 40};

/// Two sequences and padding in the first row; the second continues one from elsewhere, or not.
Batch some_batch(std::int64_t first_length, double second_row_from) {
  Batch batch{Form::position_indices, ElementType::int32, 2, 40, {}};
  for (std::int64_t t = 0; t < 37; ++t) {
    batch.values.push_back(static_cast<double>(t < first_length ? t : t - first_length));
  }
  batch.values.insert(batch.values.end(), 3, -1);
  for (int t = 0; t < 40; ++t) batch.values.push_back(second_row_from + t);
  return batch;
}

TEST_P(DeviceMap, OperatorsGiveTheSameBits) {
  const Batch batch = some_batch(9, 5);
  DeviceSequenceMap map = make(batch, kLimits, 32);
  build(map, batch);
  for (const Operator op : kOperators) {
    SCOPED_TRACE(name_of(op));
    OperatorCall call(device(), op, kLimits);
    const HostTensors expected = outputs_with_host_map(device(), call, batch, kLimits);
    call.poison_outputs();
    call.launch(map.sequences());
    const HostTensors found = call.outputs();
    device().check_guards();
    expect_same_bytes(found, expected);
    // The map has three sequences and six slots: the states of the others pass through.
    const bool backward = is_backward(op);
    const HostTensor& passed = found.at(backward ? "dinitial_states" : "final_states");
    const HostTensor given = call.tensor(backward ? "dfinal_states" : "initial_states", passed);
    const std::size_t half = passed.bytes.size() / 2;
    EXPECT_TRUE(std::equal(passed.bytes.begin() + static_cast<std::ptrdiff_t>(half), passed.bytes.end(),
                           given.bytes.begin() + static_cast<std::ptrdiff_t>(half)));
  }
}

TEST_P(DeviceMap, BrokenBoundariesGiveZeros) {
  Batch batch = some_batch(9, 0);
  batch.values[20] = 77;
  DeviceSequenceMap map = make(batch, kLimits, 32);
  build(map, batch);
  OperatorCall call(device(), Operator::ssm_pack_fwd, kLimits);
  call.poison_outputs();
  call.launch(map.sequences());
  for (const double value : call.outputs().at("out").to_double()) ASSERT_EQ(value, 0.0);
  EXPECT_THROW(map.check(), std::invalid_argument);
}

// One-token sequences, long and short ones, padding inside. Rows do not begin with a word of bits, and sequences begin
// shortly before a word does, and before the second tile of tokens.
Batch batch_for_storage() {
  Batch batch{Form::position_indices, ElementType::int32, 3, 77, {}};
  const std::vector<std::vector<int>> rows = {{40, 1, 1, 2, -3, 1, 14, 15}, {-18, 49, -1, 9}, {77}};
  for (const std::vector<int>& row : rows) {
    for (const int length : row) {
      for (int i = 0; i < std::abs(length); ++i) batch.values.push_back(length < 0 ? -1 : i);
    }
  }
  return batch;
}
constexpr MapLimits kStorageLimits{3, 77, 11, 77};
constexpr MapStorage kStorages[] = {MapStorage::positions, MapStorage::positions16, MapStorage::bits,
                                    MapStorage::offsets};

// Each storage gives the convolution the same bits, whether the host copied the map or the device built it.
TEST_P(DeviceMap, ConvolutionsReadEveryStorage) {
  const Batch batch = batch_for_storage();
  const SequenceMap host_map = with_unused_slots(batch.on_host(), batch.form, kStorageLimits);
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    for (const int width : {1, 4, 16}) {
      std::optional<HostTensors> expected;
      for (const MapStorage storage : kStorages) {
        SCOPED_TRACE(testing::Message() << name_of(op) << " width " << width << " storage "
                                        << static_cast<int>(storage));
        OperatorCall call(device(), op, kStorageLimits, width, storage);
        MappedSequences copied(device(), host_map, storage);
        copied.items = most_items(kStorageLimits.batch, kStorageLimits.max_sequences);
        DeviceSequenceMap built = make(batch, kStorageLimits, 32, storage);
        build(built, batch);
        EXPECT_TRUE(built.read() == host_map);
        for (const MappedSequences* sequences : {&std::as_const(copied), &built.sequences()}) {
          call.poison_outputs();
          call.launch(*sequences);
          const HostTensors found = call.outputs();
          device().check_guards();
          if (!expected) expected = found;
          expect_same_bytes(found, *expected);
        }
      }
    }
  }
}

TEST_P(DeviceMap, StoragesTakeWhatTheySay) {
  const Batch batch = batch_for_storage();
  const SequenceMap host_map = batch.on_host();
  // Of run_index, for 231 tokens, which are 8 words of 64 bits.
  constexpr std::size_t kBytes[] = {924, 462, 64, 0};
  for (const MapStorage storage : kStorages) {
    const MappedSequences copied(device(), host_map, storage);
    DeviceSequenceMap built = make(batch, kStorageLimits, 32, storage);
    build(built, batch);
    const std::size_t bytes = kBytes[static_cast<std::size_t>(storage)];
    ASSERT_EQ(copied.run_index.size(), bytes);
    ASSERT_EQ(built.sequences().run_index.size(), bytes);
    EXPECT_EQ(copied.slot.size(), storage == MapStorage::positions ? bytes : 0U);
    if (bytes == 0) continue;
    std::vector<std::byte> from_host(bytes), from_device(bytes);
    device().read(from_host.data(), copied.run_index.data(), bytes);
    device().read(from_device.data(), built.sequences().run_index.data(), bytes);
    EXPECT_TRUE(from_host == from_device) << static_cast<int>(storage);
  }
}

// A run longer than 16 bits count: the far end only has to stay far.
TEST_P(DeviceMap, SixteenBitStorageSaturates) {
  constexpr std::int64_t kTokens = 65'540;
  const Batch batch{Form::cu_seqlens, ElementType::int32, 1, kTokens, {0, static_cast<double>(kTokens)}};
  DeviceSequenceMap built = make(batch, {1, kTokens, 1, kTokens}, 256, MapStorage::positions16);
  build(built, batch);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(kTokens));
  device().read(values.data(), built.sequences().run_index.data(), values.size() * sizeof(values[0]));
  EXPECT_EQ(values[65'533], 65'533);
  EXPECT_EQ(values[65'534], 65'534);
  EXPECT_EQ(values.back(), 65'534);
}

TEST_P(DeviceMap, AnotherStorageThanTheKernelReadsIsRefused) {
  const Batch batch = batch_for_storage();
  const MappedSequences bits(device(), with_unused_slots(batch.on_host(), batch.form, kStorageLimits),
                             MapStorage::bits);
  OperatorCall convolution(device(), Operator::conv1d_pack_fwd, kStorageLimits);
  EXPECT_EQ(message_of([&] { convolution.launch(bits); }),
            "conv1d_pack_fwd: the map is stored as bits, but the Spec reads positions; build it with that storage");
  OperatorCall scan(device(), Operator::ssm_pack_bwd, kStorageLimits);
  EXPECT_EQ(message_of([&] { scan.launch(bits); }),
            "ssm_pack_bwd: the map is stored as bits, but the operator reads positions; build it with that storage");
  OperatorCall forward(device(), Operator::ssm_pack_fwd, kStorageLimits);
  EXPECT_NO_THROW(forward.launch(bits));  // it reads items only
}

// --- graphs ---

/// Building and one operator, captured once and replayed with other boundaries in the same memory.
TEST(DeviceMapGraph, ReplaysWithChangedBoundaries) {
  const DriverSurvey survey = survey_driver();
  if (survey.gpus.empty()) GTEST_SKIP() << survey.problem;
  const auto device = CudaDevice::open();
  const Batch first = some_batch(9, 0);
  const Placed boundaries(*device, first.tensor());
  DeviceSequenceMap map(*device, first.form, first.type, kLimits);
  for (const Operator op : kOperators) {
    SCOPED_TRACE(name_of(op));
    OperatorCall call(*device, op, kLimits);
    const auto work = [&] {
      map.build(boundaries.view);
      call.launch(map.sequences());
    };
    const HostTensor initial = first.tensor();
    device->write(boundaries.buffer.data(), initial.bytes.data(), initial.bytes.size());
    EXPECT_THROW((void)device->capture(work), std::logic_error);  // it has not run before
    work();
    const auto graph = device->capture(work);
    for (const Batch& batch : {some_batch(20, 3), some_batch(1, 0), some_batch(37, 1000)}) {
      const HostTensors expected = outputs_with_host_map(*device, call, batch, kLimits);
      const HostTensor values = batch.tensor();
      device->write(boundaries.buffer.data(), values.bytes.data(), values.bytes.size());
      call.poison_outputs();
      device->launch(*graph);
      expect_same_bytes(call.outputs(), expected);
      EXPECT_TRUE(map.read() == with_unused_slots(batch.on_host(), batch.form, kLimits));
      EXPECT_NO_THROW(map.check());
    }
    Batch broken = some_batch(9, 0);
    broken.values[79] = 0.0;
    broken.values[78] = 12.0;
    const HostTensor values = broken.tensor();
    device->write(boundaries.buffer.data(), values.bytes.data(), values.bytes.size());
    device->launch(*graph);
    EXPECT_EQ(message_of([&] { map.check(); }), message_of([&] { (void)broken.on_host(); }));
  }
  device->check_guards();
}

TEST(DeviceMapGraph, WhatACaptureCannotHoldIsRefused) {
  const DriverSurvey survey = survey_driver();
  if (survey.gpus.empty()) GTEST_SKIP() << survey.problem;
  const auto device = CudaDevice::open();
  const Buffer buffer(*device, 16);
  int value = 0;
  const std::function<void()> works[] = {
      [&] { (void)device->allocate(16); },
      [&] { device->write(buffer.data(), &value, sizeof(value)); },
      [&] { device->read(&value, buffer.data(), sizeof(value)); },
      [&] { device->synchronize(); },
      [&] { device->check_guards(); },
      [&] { (void)device->load(Spec(Operator::sequence_map), Config(Operator::sequence_map)); },
  };
  for (const auto& work : works) EXPECT_THROW((void)device->capture(work), std::logic_error);
  // The stream is usable afterwards.
  const auto graph = device->capture([&] { device->fill(buffer.data(), 0x11, sizeof(value)); });
  device->fill(buffer.data(), 0, buffer.size());
  device->launch(*graph);
  device->read(&value, buffer.data(), sizeof(value));
  EXPECT_EQ(value, 0x11111111);
}

}  // namespace
}  // namespace packjit
