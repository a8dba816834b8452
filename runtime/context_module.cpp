#include "runtime/context_module.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace packjit {

ContextModule::ContextModule(const Driver& driver, const DeviceInfo& gpu, std::uint64_t context_id,
                             const CompileResult& images)
    : driver_(driver), gpu_(gpu), context_id_(context_id), module_(load_images(driver, gpu, images)) {}

ContextModule::~ContextModule() {
  CUcontext current = nullptr;
  unsigned long long id = 0;
  if (driver_.context_current(&current) != CUDA_SUCCESS || current == nullptr) return;
  if (driver_.context_id(current, &id) != CUDA_SUCCESS || id != context_id_) return;
  driver_.module_unload(module_);  // fails where a kernel faulted, and then there is nothing left to free
}

ContextModule::Kernel* ContextModule::find(const std::string& entry) const {
  Kernel* kernel = published_.load(std::memory_order_acquire);
  while (kernel != nullptr && kernel->entry != entry) kernel = kernel->next.get();
  return kernel;
}

CUfunction ContextModule::function(const KernelLaunch& launch) const {
  const Kernel* kernel = find(launch.entry);
  const bool ready = kernel != nullptr && launch.shared_bytes <= kernel->shared_allowed.load(std::memory_order_acquire);
  return ready ? kernel->function : nullptr;
}

void ContextModule::resolve(std::span<const KernelLaunch> launches) const {
  for (const KernelLaunch& launch : launches) {
    if (function(launch) != nullptr) continue;
    const std::lock_guard lock(resolving_);
    Kernel* kernel = find(launch.entry);
    if (kernel == nullptr) {
      CUfunction function = nullptr;
      const CUresult status = driver_.module_function(&function, module_, launch.entry.c_str());
      if (status == CUDA_ERROR_NOT_FOUND) {
        throw std::logic_error(fmt::format("the compiled source has no kernel named '{}'", launch.entry));
      }
      driver_.check(status, "look up a kernel");
      // Drivers load code when it is first used, which a capture could not hold.
      int registers = 0;
      driver_.check(driver_.function_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), "load a kernel");
      if (driver_.function_load != nullptr) driver_.check(driver_.function_load(function), "load a kernel");
      kernels_ = std::make_unique<Kernel>(launch.entry, function, std::move(kernels_));
      kernel = kernels_.get();
      published_.store(kernel, std::memory_order_release);
    }
    if (launch.shared_bytes <= kernel->shared_allowed.load(std::memory_order_relaxed)) continue;
    allow_shared(driver_, gpu_, kernel->function, launch.entry, launch.shared_bytes);
    kernel->shared_allowed.store(launch.shared_bytes, std::memory_order_release);
  }
}

}  // namespace packjit
