#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/cuda_context.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// Bytes of dynamic shared memory that every kernel may use without asking.
inline constexpr std::uint32_t kSharedWithoutAsking = 48 * 1024;

/// Loads the cubin, or the PTX where the driver refuses it, into the current context. Throws EnvironmentError naming
/// the driver's version, NVRTC's, the GPU and which of them is behind when it refuses both.
[[nodiscard]] CUmodule load_images(const Driver& driver, const DeviceInfo& gpu, const CompileResult& images);

/// Lets a kernel use that much dynamic shared memory, which replaces what it was allowed before. Throws
/// std::invalid_argument when the GPU does not have as much.
void allow_shared(const Driver& driver, const DeviceInfo& gpu, CUfunction function, const std::string& entry,
                  std::uint32_t shared_bytes);

/// A loaded image and its kernels. Internal. Not thread-safe; keeps its context alive.
class CudaModule final : public Module {
 public:
  /// Throws what load_images() does.
  CudaModule(std::shared_ptr<const CudaContext> context, const CompileResult& images);
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;
  ~CudaModule() override;

  /// The kernel, allowed `shared_bytes` of dynamic shared memory: the permission is only ever raised. Throws
  /// std::invalid_argument when the module has no such kernel or the GPU not that much memory. The context is current.
  [[nodiscard]] CUfunction function(const std::string& entry, std::uint32_t shared_bytes) const;
  /// Whether function() would only look it up: the first time, the driver may load code.
  [[nodiscard]] bool has_used(const std::string& entry, std::uint32_t shared_bytes) const;
  [[nodiscard]] bool belongs_to(const CudaContext& context) const { return context_.get() == &context; }

 private:
  struct Kernel {
    CUfunction function = nullptr;
    std::uint32_t shared_allowed = 0;
  };
  std::shared_ptr<const CudaContext> context_;
  CUmodule module_ = nullptr;
  mutable std::map<std::string, Kernel> kernels_;  // resolved at first use
};

}  // namespace packjit
