#include "runtime/cuda_module.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/errors.hpp"
#include "runtime/image_choice.hpp"
#include "runtime/log.hpp"

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
  std::vector<std::string> refusals;
  const auto load = [&](const std::string& image) {
    const CUresult status = load_image(driver, &module, image, log);
    if (status == CUDA_SUCCESS) return true;
    if (!is_refusal(status)) driver.check(status, "load a compiled kernel");
    refusals.push_back(driver.describe(status));
    return false;
  };
  const std::optional<ImageKind> loaded = load_first_accepted(images, load);
  if (loaded == ImageKind::ptx) {
    write_log({LogLevel::event,
               fmt::format("the driver refuses the cubin for {} ({}) and translates its PTX", images.arch, refusals[0]),
               {}});
  }
  if (loaded) return module;
  const auto nvrtc = Nvrtc::shared();
  const Versions versions{driver.version, nvrtc->version(), gpu.name, gpu.arch, nvrtc->archs()};
  throw EnvironmentError(fmt::format("the driver refuses the kernel compiled for {}: cubin: {}; PTX: {}. {}{}{}",
                                     images.arch, refusals.at(0), refusals.at(1), which_is_behind(versions),
                                     log.empty() ? "" : "\n", log));
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
