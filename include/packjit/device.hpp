#pragma once
// Devices and tensors. A part of packjit/packjit.hpp.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "packjit/status.hpp"

namespace packjit {
inline namespace v1 {

/// A CUstream or cudaStream_t that the caller owns; null is the default stream. Host execution ignores it.
using Stream = void*;

/// What a device is. A plain value.
struct DeviceInfo {
  bool is_host = false;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::string arch;  ///< "sm_90", "host"
  std::string name;  ///< a label
};

/// Where operators run. Any thread may use it, several at once. Movable, not copyable. It must outlive everything that
/// was made with it; its destructor waits for preparations that are under way.
class Device {
 public:
  /// GPU 0 where there is a GPU, otherwise host execution.
  [[nodiscard]] static Result<Device> automatic() { return open(PACKJIT_AUTO, 0); }
  /// The primary context of a GPU, which CUDA's runtime and PyTorch use.
  [[nodiscard]] static Result<Device> gpu(int ordinal = 0) { return open(PACKJIT_GPU, ordinal); }
  /// Whatever CUDA context is current on the thread that calls, of any GPU.
  [[nodiscard]] static Result<Device> current() { return open(PACKJIT_CURRENT, 0); }
  /// The CPU, for checks: needs a C++ compiler at run time and is slow. Calls have ended when they return.
  [[nodiscard]] static Result<Device> host() { return open(PACKJIT_HOST, 0); }

  [[nodiscard]] Result<DeviceInfo> info() const {
    packjit_device_info info{};
    info.struct_size = sizeof(info);
    if (Status status(packjit_device_get_info(handle_.get(), &info)); !status) return status;
    return DeviceInfo{info.is_host != 0, info.multiprocessors, info.memory_bytes, info.arch, info.name};
  }
  [[nodiscard]] packjit_device* handle() const { return handle_.get(); }

 private:
  using Handle = detail::Owned<packjit_device, packjit_device_release>;
  explicit Device(packjit_device* handle) : handle_(handle) {}
  static Result<Device> open(std::int32_t kind, std::int32_t ordinal) {
    const packjit_device_options options{sizeof(options), kind, ordinal};
    packjit_device* handle = nullptr;
    if (Status status(packjit_device_open(&options, &handle)); !status) return status;
    return Device(handle);
  }
  Handle handle_;
};

enum class Dtype {
  fp32 = PACKJIT_FP32,
  fp16 = PACKJIT_FP16,
  bf16 = PACKJIT_BF16,
  int16 = PACKJIT_INT16,
  uint16 = PACKJIT_UINT16,
  int32 = PACKJIT_INT32,
  int64 = PACKJIT_INT64,
  complex64 = PACKJIT_COMPLEX64
};

/// Memory that the caller owns, of the device unless it says otherwise, as a tensor of 1 to 4 dimensions. Strides count
/// elements and may be anything. A default one is absent. A plain value.
struct Tensor {
  Tensor() = default;
  /// Dense, the last dimension first. Memory of inputs is not written.
  Tensor(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size()), {}) {}
  Tensor(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> stride)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size()), std::span(stride.begin(), stride.size())) {}
  /// Without strides it is dense. Too many dimensions, another number of strides, or more elements than strides can
  /// count make a tensor that every call refuses.
  Tensor(const void* data, Dtype dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> stride) {
    tensor.data = const_cast<void*>(data);
    tensor.dtype = static_cast<std::int32_t>(dtype);
    const bool fits = shape.size() <= 4 && (stride.empty() || stride.size() == shape.size());
    tensor.rank = fits && !shape.empty() ? static_cast<std::int32_t>(shape.size()) : -1;
    std::int64_t dense = 1;
    bool beyond = false;  // 63 bits are too few for a stride
    for (std::size_t i = fits ? shape.size() : 0; i-- > 0;) {
      tensor.shape[i] = shape[i];
      if (stride.empty() && beyond) tensor.rank = -1;
      tensor.stride[i] = stride.empty() ? dense : stride[i];
      beyond = __builtin_mul_overflow(dense, shape[i], &dense) || beyond;
    }
  }
  [[nodiscard]] bool present() const { return tensor.rank != 0; }
  /// For the C interface; null where it is absent.
  [[nodiscard]] const packjit_tensor* get() const { return present() ? &tensor : nullptr; }

  packjit_tensor tensor{sizeof(packjit_tensor), nullptr, 0, 0, {}, {}};
};

/// Scratch memory of the caller, at a multiple of 256 bytes. Calls that follow one another on a stream may share it. A
/// default one stands for the library's own of the stream, which it keeps until the device is gone.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace v1
}  // namespace packjit
