// Operators on maps that the device built, eagerly and in graphs, against the same with the host's maps.
#include <functional>
#include <map>

#include "checking/random.hpp"
#include "runtime/cuda_device.hpp"
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
