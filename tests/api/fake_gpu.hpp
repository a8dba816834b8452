// A GPU by a driver that runs nothing, and a small scan on it.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "api/handles.hpp"
#include "tests/api/fake_driver.hpp"
#include "tests/api/handles.hpp"

namespace packjit::testing {

inline void* const kStream = reinterpret_cast<void*>(0x1000);       // NOLINT(performance-no-int-to-ptr)
inline void* const kOtherStream = reinterpret_cast<void*>(0x2000);  // NOLINT(performance-no-int-to-ptr)

class OnAFakeGpu : public ::testing::Test {
 protected:
  DeviceHandle open(std::optional<int> ordinal, CompileForGpu compile = FakeDriver::compiler()) {
    return DeviceHandle(new packjit_device(api::cuda_backend(fake.driver(), ordinal, std::move(compile))));
  }
  FakeDriver fake;
};
/// What callers do one after the other and at once: sessions_test.cpp and preparations_test.cpp.
class Sessions : public OnAFakeGpu {};

/// Both directions of the scan without states, on memory that nobody reads.
struct SmallScan {
  explicit SmallScan(std::int64_t seqlen_, std::int64_t dim_ = 8) : seqlen(seqlen_), dim(dim_) {
    for (packjit_tensor* wide : {&u, &delta, &z, &out, &dout, &du, &ddelta, &dz})
      *wide = tensor(memory, PACKJIT_BF16, {1, seqlen, dim});
    for (packjit_tensor* grouped : {&B, &C, &dB, &dC}) *grouped = tensor(memory, PACKJIT_BF16, {1, seqlen, 1, 16});
    for (packjit_tensor* square : {&A, &dA}) *square = tensor(memory, PACKJIT_FP32, {dim, 16});
    for (packjit_tensor* flat : {&D, &delta_bias, &dD, &ddelta_bias}) *flat = tensor(memory, PACKJIT_FP32, {dim});
    char* place = memory;  // never read or written
    for (packjit_tensor* each : {&u, &delta, &A, &B, &C, &D, &z, &delta_bias, &out, &dout, &du, &ddelta, &dA, &dB, &dC,
                                 &dD, &dz, &ddelta_bias}) {
      each->data = place;
      place += kApart;
    }
  }
  static packjit_operator_options options() {
    packjit_operator_options o{};
    o.op = PACKJIT_SSM_PACK;
    return o;
  }
  [[nodiscard]] packjit_shape shape() const {
    return {sizeof(packjit_shape), 1, seqlen, dim, 1, 2, seqlen, PACKJIT_TOKEN_MAJOR, 0};
  }
  packjit_status forward(packjit_operator* op, const packjit_map* map, void* stream) const {
    const packjit_ssm_forward_tensors t{sizeof(t), &u,          &delta,  &A,   &B,      &C,     &D,
                                        &z,        &delta_bias, nullptr, &out, nullptr, nullptr};
    return packjit_ssm_forward(op, stream, map, &t, nullptr);
  }
  packjit_status backward(packjit_operator* op, const packjit_map* map, void* stream,
                          const packjit_workspace* workspace = nullptr) const {
    const packjit_ssm_backward_tensors t{sizeof(t),   &u,      &delta, &A,      &B,           &C,     &D,      &z,
                                         &delta_bias, nullptr, &dout,  nullptr, nullptr,      &du,    &ddelta, &dA,
                                         &dB,         &dC,     &dD,    &dz,     &ddelta_bias, nullptr};
    return packjit_ssm_backward(op, stream, map, &t, workspace);
  }
  static constexpr std::size_t kApart = 256;
  alignas(kApart) static inline char memory[18 * kApart];
  std::int64_t seqlen, dim;
  packjit_tensor u, delta, A, B, C, D, z, delta_bias, out, dout, du, ddelta, dA, dB, dC, dD, dz, ddelta_bias;
};
inline const std::vector<std::int32_t> kPositions = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5};

}  // namespace packjit::testing
