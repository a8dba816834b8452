#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "packjit/packjit.h"

namespace packjit::testing {

/// Handles of the C interface that release themselves.
template <typename Handle, void (*kRelease)(Handle*)>
struct Releaser {
  void operator()(Handle* handle) const { kRelease(handle); }
};
using DeviceHandle = std::unique_ptr<packjit_device, Releaser<packjit_device, packjit_device_release>>;
using MapHandle = std::unique_ptr<packjit_map, Releaser<packjit_map, packjit_map_release>>;
using OperatorHandle = std::unique_ptr<packjit_operator, Releaser<packjit_operator, packjit_operator_release>>;
using TaskHandle = std::unique_ptr<packjit_task, Releaser<packjit_task, packjit_task_release>>;

/// Fails the test with the message where a call failed.
#define EXPECT_DONE(call) EXPECT_EQ((call), PACKJIT_OK) << packjit_last_error()
#define ASSERT_DONE(call) ASSERT_EQ((call), PACKJIT_OK) << packjit_last_error()

/// Whether the message of the last call that failed has `what` in it.
inline bool says(const std::string& what) { return std::string(packjit_last_error()).find(what) != std::string::npos; }

inline DeviceHandle open_host() {
  const packjit_device_options options{sizeof(options), PACKJIT_HOST, 0};
  packjit_device* device = nullptr;
  EXPECT_DONE(packjit_device_open(&options, &device));
  return DeviceHandle(device);
}

inline OperatorHandle make_operator(const DeviceHandle& device, packjit_operator_options options) {
  options.struct_size = sizeof(options);
  packjit_operator* op = nullptr;
  EXPECT_DONE(packjit_operator_create(device.get(), &options, &op));
  return OperatorHandle(op);
}

inline packjit_tensor tensor(const void* data, std::int32_t dtype, std::initializer_list<std::int64_t> shape) {
  packjit_tensor made{sizeof(made), const_cast<void*>(data), dtype, static_cast<std::int32_t>(shape.size()), {}, {}};
  std::int64_t next = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    made.shape[i] = shape.begin()[i];
    made.stride[i] = next;
    next *= made.shape[i];
  }
  return made;
}

/// Of (1, positions) in host memory; with limits where they are given.
inline MapHandle map_from_positions(const DeviceHandle& device, const std::vector<std::int32_t>& positions,
                                    void* stream = nullptr, std::int64_t max_sequences = 0,
                                    std::int64_t max_seqlen = 0) {
  const auto count = static_cast<std::int64_t>(positions.size());
  const packjit_map_options options{
      sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, count, max_sequences, max_seqlen};
  const packjit_tensor boundaries = tensor(positions.data(), PACKJIT_INT32, {1, count});
  packjit_map* map = nullptr;
  EXPECT_DONE(packjit_map_from_host(device.get(), stream, &options, &boundaries, &map));
  return MapHandle(map);
}

/// The convolution of README.md: 8 tokens, sequences of 5 and 3, sums of up to four tokens of the own sequence.
struct SmallConvolution {
  std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 0, 1, 2};
  std::vector<float> x = {1, 2, 3, 4, 5, 10, 20, 30};
  std::vector<float> weight = {1, 1, 1, 1};
  std::vector<float> out = std::vector<float>(8, -1.0F);
  static inline const std::vector<float> kExpected = {1, 3, 6, 10, 14, 10, 30, 60};

  static packjit_operator_options options() {
    packjit_operator_options o{};
    o.op = PACKJIT_CONV1D_PACK;
    o.dtype = PACKJIT_FP32;
    o.bias = PACKJIT_OFF;
    o.silu = PACKJIT_OFF;
    return o;
  }
  packjit_status run(packjit_operator* op, const packjit_map* map, void* stream = nullptr) {
    const packjit_tensor tx = tensor(x.data(), PACKJIT_FP32, {1, 8, 1});
    const packjit_tensor tw = tensor(weight.data(), PACKJIT_FP32, {1, 4});
    const packjit_tensor to = tensor(out.data(), PACKJIT_FP32, {1, 8, 1});
    const packjit_conv1d_forward_tensors tensors{sizeof(tensors), &tx, &tw, nullptr, nullptr, &to, nullptr};
    return packjit_conv1d_forward(op, stream, map, &tensors, nullptr);
  }
};

}  // namespace packjit::testing
