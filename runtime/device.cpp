#include "runtime/device.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "runtime/cuda_device.hpp"

namespace packjit {

std::unique_ptr<Device> open_device(const std::string& name) {
  if (name == "cuda") return open_cuda_device();
  if (name == "host") return open_host_device();
  if (name == "auto") return survey_driver().gpus.empty() ? open_host_device() : open_cuda_device();
  throw std::invalid_argument(fmt::format("unknown device '{}': expected auto, cuda or host", name));
}

}  // namespace packjit
