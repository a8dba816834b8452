#include "runtime/compile_for_gpu.hpp"

#include <stdexcept>

#include "runtime/compile_cache.hpp"
#include "runtime/image_choice.hpp"

namespace packjit {

std::shared_ptr<const CompileResult> compile_for_gpu(const Source& source, const std::string& gpu_arch) {
  const auto nvrtc = Nvrtc::shared();
  const std::string arch = arch_for_gpu(gpu_arch, nvrtc->archs(), nvrtc->version_text());
  CachedCompile found = CompileCache::shared().get(source, arch);
  if (!found.result->ok) {
    throw std::logic_error("generated source does not compile. " + describe_failure(*found.result));
  }
  return std::move(found.result);
}

}  // namespace packjit
