#pragma once

#include "runtime/device.hpp"
#include "runtime/driver.hpp"

namespace packjit {

/// The primary context of one GPU and one stream in it. Internal. Released on destruction.
class CudaContext {
 public:
  /// Throws EnvironmentError when there is no such GPU.
  explicit CudaContext(int ordinal);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  [[nodiscard]] CUstream stream() const { return stream_; }

  /// Makes the context current on this thread while it lives; the one before comes back afterwards.
  class Current {
   public:
    explicit Current(const CudaContext& context);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    const Driver& driver_;
  };

 private:
  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  DeviceInfo info_;
};

/// The GPU with this number. Throws EnvironmentError when there is none.
[[nodiscard]] CUdevice gpu_numbered(const Driver& driver, int ordinal);

/// What the driver says of one GPU.
[[nodiscard]] DeviceInfo describe_gpu(const Driver& driver, CUdevice device);

}  // namespace packjit
