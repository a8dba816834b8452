#include "runtime/cuda_context.hpp"

#include <fmt/format.h>

#include <array>

#include "runtime/errors.hpp"

namespace packjit {

DeviceInfo describe_gpu(const Driver& driver, CUdevice device) {
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    driver.check(driver.device_attribute(&value, which, device), "read an attribute of the GPU");
    return value;
  };
  std::array<char, 256> name{};
  driver.check(driver.device_name(name.data(), static_cast<int>(name.size() - 1), device), "read the GPU's name");
  std::size_t memory = 0;
  driver.check(driver.device_memory(&memory, device), "read the size of the GPU's memory");
  DeviceInfo info;
  info.kind = "cuda";
  info.name = name.data();
  info.arch = fmt::format("sm_{}{}", attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                          attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  info.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.shared_bytes_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  info.memory_bytes = static_cast<std::int64_t>(memory);
  info.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  constexpr int kKhzPerMhz = 1000;  // the driver counts in kHz
  info.clock_mhz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / kKhzPerMhz;
  info.memory_clock_mhz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / kKhzPerMhz;
  return info;
}

CUdevice gpu_numbered(const Driver& driver, int ordinal) {
  int count = 0;
  driver.check(driver.device_count(&count), "count the GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw EnvironmentError(
        fmt::format("no GPU with number {}: the driver shows {}; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use "
                    "host execution (--device host, PACKJIT_HOST)",
                    ordinal, count));
  }
  CUdevice device = 0;
  driver.check(driver.device_get(&device, ordinal), "open the GPU");
  return device;
}

CudaContext::CudaContext(int ordinal) : driver_(Driver::get()) {
  device_ = gpu_numbered(driver_, ordinal);
  info_ = describe_gpu(driver_, device_);
  const CUresult status = driver_.context_retain(&context_, device_);
  if (status != CUDA_SUCCESS) {
    throw EnvironmentError(
        fmt::format("GPU {} ({}) cannot be used: {}; it may be in exclusive mode, out of memory or "
                    "broken, see `nvidia-smi`",
                    ordinal, info_.name, driver_.describe(status)));
  }
  try {
    const Current current(*this);
    driver_.check(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
  } catch (...) {
    driver_.context_release(device_);
    throw;
  }
}

CudaContext::~CudaContext() {
  // Failures are of no use here: after a kernel faulted, every call in the context fails.
  if (driver_.context_push(context_) == CUDA_SUCCESS) {
    driver_.stream_destroy(stream_);
    CUcontext popped = nullptr;
    driver_.context_pop(&popped);
  }
  driver_.context_release(device_);
}

CudaContext::Current::Current(const CudaContext& context) : driver_(context.driver_) {
  driver_.check(driver_.context_push(context.context_), "enter the GPU's context");
}

CudaContext::Current::~Current() {
  CUcontext popped = nullptr;
  driver_.context_pop(&popped);
}

}  // namespace packjit
