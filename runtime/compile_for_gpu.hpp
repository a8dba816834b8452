#pragma once

#include <functional>
#include <memory>
#include <string>

#include "generator/generate.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// Compiled images of generated source for a GPU of this architecture. Never fails as a value: it throws.
using CompileForGpu =
    std::function<std::shared_ptr<const CompileResult>(const Source& source, const std::string& gpu_arch)>;

/// With NVRTC, through CompileCache::shared(): threads and processes that ask for the same wait for one compile, and a
/// failure is not kept. Throws EnvironmentError where NVRTC is missing or does not fit the GPU.
[[nodiscard]] std::shared_ptr<const CompileResult> compile_for_gpu(const Source& source, const std::string& gpu_arch);

}  // namespace packjit
