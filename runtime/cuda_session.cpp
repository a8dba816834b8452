#include "runtime/cuda_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "generator/generate.hpp"
#include "runtime/cuda_context.hpp"
#include "runtime/errors.hpp"
#include "runtime/fork_watch.hpp"
#include "runtime/self_check.hpp"

namespace packjit {
CudaSession::CudaSession(const Driver& driver, std::optional<int> ordinal, CompileForGpu compile, SelfCheck check)
    : driver_(driver), compile_(std::move(compile)), check_(std::move(check)) {
  watch_forks();
  forks_ = forks_seen();
  if (!ordinal) return;
  device_ = gpu_numbered(driver_, *ordinal);
  primary_ = retain();
}

CudaSession::~CudaSession() {
  if (forks_ != forks_seen()) return;  // nothing of it exists in this process
  try {
    const Entered entered(*this);
    kernels_.clear();
    const BesideCaptures beside(driver_);
    for (const Scratch& scratch : scratch_) {
      if (scratch.context.id == entered.context().id) driver_.memory_free(scratch.memory);
    }
  } catch (const std::exception&) {
    // The context is gone, or the driver at the end of the process, and all that was in it.
  }
  if (device_) driver_.context_release(*device_);
}

CUcontext CudaSession::retain() {
  CUcontext context = nullptr;
  const CUresult status = driver_.context_retain(&context, *device_);
  if (status == CUDA_SUCCESS) return context;
  throw EnvironmentError(
      fmt::format("GPU {} cannot be used: {}; it may be in exclusive mode, out of memory or broken, see `nvidia-smi`",
                  int{*device_}, driver_.describe(status)));
}

CudaSession::Entered::Entered(CudaSession& session, CUcontext handed) : driver_(session.driver_) {
  if (session.forks_ != forks_seen()) {
    throw EnvironmentError(
        "this process was forked from one that had already used the GPU, which the CUDA driver does not support: fork "
        "before the first GPU call, or start a new program");
  }
  CUcontext current = nullptr;
  driver_.check(driver_.context_current(&current), "ask for the current context");
  CUcontext wanted = session.device_ ? session.primary_.load() : handed != nullptr ? handed : current;
  if (wanted == nullptr) {
    throw EnvironmentError(
        "no CUDA context is current on this thread, and the device was opened for the current one: make a context "
        "current (cuCtxSetCurrent, cudaSetDevice and cudaFree(0)), or open the device for a GPU by its number");
  }
  const auto enter = [&] {
    CUresult status = wanted == current ? CUDA_SUCCESS : driver_.context_push(wanted);
    pushed_ = wanted != current && status == CUDA_SUCCESS;
    unsigned long long id = 0;
    if (status == CUDA_SUCCESS) status = driver_.context_id(wanted, &id);
    context_ = {wanted, id};
    return status;
  };
  CUresult status = enter();
  if (status != CUDA_SUCCESS && session.device_) {
    // Someone reset the GPU, which destroys its primary context.
    CUcontext popped = nullptr;
    if (pushed_) driver_.context_pop(&popped);
    session.primary_ = wanted = session.retain();
    status = enter();
  }
  if (status != CUDA_SUCCESS && pushed_) {
    CUcontext popped = nullptr;
    driver_.context_pop(&popped);
  }
  driver_.check(status, "enter the GPU's context");
}

CudaSession::Entered::~Entered() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.context_pop(&popped);
}

const DeviceInfo& CudaSession::info() {
  CUdevice device = 0;
  driver_.check(driver_.context_device(&device), "ask which GPU the context belongs to");
  const std::lock_guard lock(info_mutex_);
  const auto found = infos_.find(device);
  return found != infos_.end() ? found->second : infos_.emplace(device, describe_gpu(driver_, device)).first->second;
}

CUcontext CudaSession::to_hand_on() const {
  CUcontext current = nullptr;
  if (!device_) driver_.check(driver_.context_current(&current), "ask for the current context");
  return current;
}

bool CudaSession::is_captured(CUstream stream) const {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult status = driver_.capture_status(stream, &capture);
  // The default stream while another stream of the context is captured: any use of it would end that capture.
  if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  driver_.check(status, "ask whether a stream is being captured");
  return capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

void CudaSession::refuse_in_capture(CUstream stream, const std::string& what) const {
  if (!is_captured(stream)) return;
  throw NotPreparedInCapture(fmt::format(
      "while a stream is captured, {} is not possible: prepare the call before the capture begins, or run it "
      "once. The capture goes on",
      what));
}

std::shared_ptr<const ContextModule> CudaSession::load(const Entered& entered, CUstream stream, const Spec& spec,
                                                       const Config& config) {
  if (auto found = kernels_.find(spec, config, entered.context().id)) return found;
  refuse_in_capture(stream, fmt::format("compiling a kernel for {}", name_of(spec.op)));
  return kernels_.load(spec, config, entered.context(), [&] {
    const DeviceInfo& gpu = info();
    check_arch(config, gpu.arch);
    const Source source = generate(spec, config, Target::cuda);
    const auto images = compile_(source, gpu.arch);
    const BesideCaptures beside(driver_);
    auto module = std::make_shared<const ContextModule>(driver_, gpu, entered.context().id, *images);
    check_kernel(check_, *this, spec, config, module, source.key, *images);
    return module;
  });
}

CUdeviceptr CudaSession::allocate(std::size_t bytes) {
  CUdeviceptr memory = 0;
  const BesideCaptures beside(driver_);
  const CUresult status = driver_.memory_allocate(&memory, std::max<std::size_t>(bytes, 1));
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw OutOfMemory(fmt::format("could not take {} bytes of the GPU's memory: {}; give some back, or use less a call",
                                  bytes, driver_.describe(status)));
  }
  driver_.check(status, "take memory of the GPU");
  return memory;
}

void CudaSession::keep(const Entered& entered, CUdeviceptr memory) {
  const std::unique_lock lock(scratch_mutex_);
  scratch_.push_back({entered.context(), {}, memory, 0});
}

CudaSession::StreamName CudaSession::name_of_stream(CUstream stream) const {
  if (stream != CU_STREAM_PER_THREAD) return {stream, 0};
  unsigned long long number = 0;
  driver_.check(driver_.stream_id(stream, &number), "ask for the number of this thread's default stream");
  return {stream, number};
}

const CudaSession::Scratch* CudaSession::scratch_for(const Entered& entered, StreamName stream,
                                                     std::size_t bytes) const {
  const auto found = std::find_if(scratch_.begin(), scratch_.end(), [&](const Scratch& s) {
    return s.context.id == entered.context().id && s.stream == stream && s.bytes >= bytes;
  });
  return found == scratch_.end() ? nullptr : &*found;
}

void* CudaSession::workspace(const Entered& entered, CUstream stream, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const StreamName name = name_of_stream(stream);
  {
    const std::shared_lock lock(scratch_mutex_);
    if (const Scratch* found = scratch_for(entered, name, bytes)) return to_pointer(found->memory);
  }
  refuse_in_capture(stream, fmt::format("taking {} bytes of workspace", bytes));
  const std::unique_lock lock(scratch_mutex_);
  if (const Scratch* found = scratch_for(entered, name, bytes)) return to_pointer(found->memory);
  std::erase_if(scratch_, [&](const Scratch& s) {  // of a context that is gone
    return s.context.address == entered.context().address && s.context.id != entered.context().id;
  });
  // Twice as much as before, so that all that is kept is at most four times what is needed; or, where the GPU has not
  // as much, what is needed.
  std::size_t room = bytes;
  for (const Scratch& s : scratch_) {
    if (s.context.id == entered.context().id && s.stream == name) room = std::max(room, 2 * s.bytes);
  }
  CUdeviceptr memory = 0;
  if (room > bytes) {
    try {
      memory = allocate(room);
    } catch (const OutOfMemory&) {
      room = bytes;
    }
  }
  if (memory == 0) memory = allocate(room);
  scratch_.push_back({entered.context(), name, memory, room});
  return to_pointer(memory);
}

}  // namespace packjit
