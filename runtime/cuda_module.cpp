#include "runtime/cuda_module.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "runtime/errors.hpp"
#include "runtime/image_choice.hpp"

namespace packjit {
namespace {

bool is_refusal(CUresult status) {
  switch (status) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
      return true;
    default:
      return false;
  }
}

CUresult load_image(const Driver& driver, CUmodule* module, const std::string& image, std::string& log) {
  std::array<char, 4096> text{};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  // The driver takes the size as a number in a pointer's place.
  void* const size = reinterpret_cast<void*>(text.size() - 1);  // NOLINT(performance-no-int-to-ptr)
  void* values[] = {text.data(), size};
  const CUresult status = driver.module_load(module, image.c_str(), 2, options, values);
  log = text.data();
  return status;
}

}  // namespace

CUmodule load_images(const Driver& driver, const DeviceInfo& gpu, const CompileResult& images) {
  CUmodule module = nullptr;
  std::string log;
  const CUresult cubin = load_image(driver, &module, images.cubin, log);
  if (cubin == CUDA_SUCCESS) return module;
  if (!is_refusal(cubin)) driver.check(cubin, "load a compiled kernel");
  const CUresult ptx = load_image(driver, &module, images.ptx, log);
  if (ptx == CUDA_SUCCESS) return module;
  if (!is_refusal(ptx)) driver.check(ptx, "load a compiled kernel");
  const auto nvrtc = Nvrtc::shared();
  const Versions versions{driver.version, nvrtc->version(), gpu.name, gpu.arch, nvrtc->archs()};
  throw EnvironmentError(fmt::format("the driver refuses the kernel compiled for {}: cubin: {}; PTX: {}. {}{}{}",
                                     images.arch, driver.describe(cubin), driver.describe(ptx),
                                     which_is_behind(versions), log.empty() ? "" : "\n", log));
}

void allow_shared(const Driver& driver, const DeviceInfo& gpu, CUfunction function, const std::string& entry,
                  std::uint32_t shared_bytes) {
  int fixed = 0;
  driver.check(driver.function_attribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
               "read a kernel's shared memory");
  if (fixed + std::int64_t{shared_bytes} > gpu.shared_bytes_per_block) {
    throw std::invalid_argument(
        fmt::format("kernel {} needs {} bytes of shared memory a block; {} ({}) has {}. Choose a smaller config", entry,
                    fixed + std::int64_t{shared_bytes}, gpu.name, gpu.arch, gpu.shared_bytes_per_block));
  }
  driver.check(driver.function_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             static_cast<int>(shared_bytes)),
               "raise a kernel's shared memory");
}

CudaModule::CudaModule(std::shared_ptr<const CudaContext> context, const CompileResult& images)
    : context_(std::move(context)) {
  const CudaContext::Current current(*context_);
  module_ = load_images(context_->driver(), context_->info(), images);
}

CudaModule::~CudaModule() {
  // In a context where a kernel faulted this fails, and there is nothing left to free.
  try {
    const CudaContext::Current current(*context_);
    context_->driver().module_unload(module_);
  } catch (const std::exception&) {
    return;
  }
}

bool CudaModule::has_used(const std::string& entry, std::uint32_t shared_bytes) const {
  const auto found = kernels_.find(entry);
  return found != kernels_.end() && found->second.function != nullptr && shared_bytes <= found->second.shared_allowed;
}

CUfunction CudaModule::function(const std::string& entry, std::uint32_t shared_bytes) const {
  const Driver& driver = context_->driver();
  Kernel& kernel = kernels_[entry];
  if (kernel.function == nullptr) {
    const CUresult status = driver.module_function(&kernel.function, module_, entry.c_str());
    if (status == CUDA_ERROR_NOT_FOUND) {
      throw std::invalid_argument(fmt::format(
          "the kernel source has no kernel named '{}'; it has to keep the name and be declared extern \"C\"", entry));
    }
    driver.check(status, "look up a kernel");
    kernel.shared_allowed = kSharedWithoutAsking;
  }
  if (shared_bytes <= kernel.shared_allowed) return kernel.function;
  allow_shared(driver, context_->info(), kernel.function, entry, shared_bytes);
  kernel.shared_allowed = shared_bytes;
  return kernel.function;
}

}  // namespace packjit
