#include "runtime/cuda_launch.hpp"

#include <fmt/format.h>

namespace packjit {

CUresult launch_kernel(const Driver& driver, CUfunction function, CUstream stream, const KernelLaunch& launch,
                       std::span<const std::byte> argument) {
  // The driver copies the argument during the call and does not change it.
  void* parameters[] = {const_cast<std::byte*>(argument.data())};
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = launch.grid_x;
  config.gridDimY = launch.grid_y;
  config.gridDimZ = 1;
  config.blockDimX = launch.block;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = launch.shared_bytes;
  config.hStream = stream;
  config.attrs = &early;
  config.numAttrs = launch.early ? 1 : 0;
  return driver.launch_kernel(&config, function, parameters, nullptr);
}

std::string describe_launch_failure(const Driver& driver, CUresult status, const KernelLaunch& launch,
                                    const std::string& gpu) {
  return fmt::format(
      "could not launch kernel {} with grid {} x {}, block {}, {} bytes of shared "
      "memory on {}: {}",
      launch.entry, launch.grid_x, launch.grid_y, launch.block, launch.shared_bytes, gpu, driver.describe(status));
}

}  // namespace packjit
