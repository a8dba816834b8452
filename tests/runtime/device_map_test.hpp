#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generator/sequence_map.hpp"
#include "runtime/device_sequence_map.hpp"
#include "runtime/errors.hpp"
#include "tests/message_of.hpp"

// What the tests of maps that the device builds, and of operators on them, share.

namespace packjit::test {

using Form = Boundaries::Form;
using Values = std::vector<double>;

inline std::unique_ptr<Device> open_ordered(const std::string& name) {
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

inline std::string text_of(const Batch& batch) {
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

}  // namespace packjit::test
