#pragma once

#include <functional>
#include <memory>

#include "runtime/check_record.hpp"
#include "runtime/cuda_session.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// Runs `check` on a kernel that was just loaded, unless it is known to have passed: on a stream and in memory of its
/// own, in the entered context. Nothing where `check.run` is empty.
///
/// Throws CheckFailed where a result is wrong, naming the kernel, the GPU, the driver, NVRTC and the worst result, and
/// what the driver or the memory throw, saying that it was the self-check.
void check_kernel(const SelfCheck& check, CudaSession& session, const Spec& spec, const Config& config,
                  const std::shared_ptr<const ContextModule>& module, const std::string& source_key,
                  const CompileResult& images);

}  // namespace packjit
