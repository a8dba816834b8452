#include "runtime/stream_device.hpp"

#include <optional>
#include <stdexcept>

#include "runtime/cuda_launch.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

const ContextModule& own_module(const Module& module, const CudaSession::Entered& entered) {
  const auto* own = dynamic_cast<const ContextModule*>(&module);
  if (own == nullptr || own->context_id() != entered.context().id) {
    throw std::logic_error("a module can only be launched in the context that it was loaded in");
  }
  return *own;
}

}  // namespace

bool StreamDevice::is_captured() const {
  const CudaSession::Entered entered(session_);
  return session_.is_captured(stream_);
}

const DeviceInfo& StreamDevice::info() const {
  const CudaSession::Entered entered(session_);
  return session_.info();
}

void* StreamDevice::allocate(std::size_t bytes) {
  const CudaSession::Entered entered(session_);
  session_.refuse_in_capture(stream_, "taking memory");
  if (memory_context_ == 0) memory_context_ = entered.context().id;
  if (memory_context_ != entered.context().id) {
    throw std::invalid_argument("another context is current than the one in which this map was made");
  }
  return to_pointer(session_.allocate(bytes));
}

void StreamDevice::release(void* memory) noexcept {
  try {
    const CudaSession::Entered entered(session_);
    if (entered.context().id != memory_context_) return;
    if (keeps_memory_) return session_.keep(entered, to_address(memory));
    const BesideCaptures beside(session_.driver());
    session_.driver().memory_free(to_address(memory));
  } catch (const std::exception&) {
    return;  // the context is lost, and its memory with it
  }
}

void StreamDevice::write(void* to_device, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaSession::Entered entered(session_);
  session_.refuse_in_capture(stream_, "copying to the GPU");
  session_.driver().check(session_.driver().copy_to_device(to_address(to_device), from, bytes, stream_),
                          "copy to the GPU");
}

void StreamDevice::read(void* to, const void* from_device, std::size_t bytes) {
  const CudaSession::Entered entered(session_);
  session_.refuse_in_capture(stream_, "copying from the GPU");
  const Driver& driver = session_.driver();
  if (bytes > 0) driver.check(driver.copy_to_host(to, to_address(from_device), bytes, stream_), "copy from the GPU");
  driver.check(driver.stream_synchronize(stream_), "wait for a stream");
}

void StreamDevice::copy(void* to_device, const void* from_device, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaSession::Entered entered(session_);
  const Driver& driver = session_.driver();
  driver.check(driver.copy_on_device(to_address(to_device), to_address(from_device), bytes, stream_),
               "copy device memory");
}

void StreamDevice::fill(void* on_device, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaSession::Entered entered(session_);
  session_.driver().check(session_.driver().memory_set(to_address(on_device), value, bytes, stream_),
                          "fill device memory");
}

std::shared_ptr<const Module> StreamDevice::load(const Spec& spec, const Config& config) {
  const CudaSession::Entered entered(session_);
  return session_.load(entered, stream_, spec, config);
}

std::shared_ptr<const Module> StreamDevice::load_text(const std::string&) {
  throw std::logic_error("hand-edited kernels do not run on streams of a host application");
}

void StreamDevice::resolve(const Module& module, std::span<const KernelLaunch> launches) {
  const CudaSession::Entered entered(session_);
  const ContextModule& own = own_module(module, entered);
  for (const KernelLaunch& launch : launches) {
    if (own.function(launch) != nullptr) continue;
    session_.refuse_in_capture(stream_, "loading kernel " + launch.entry);
    const BesideCaptures beside(session_.driver());
    own.resolve(std::span(&launch, 1));
  }
}

void StreamDevice::launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) {
  std::optional<CudaSession::Entered> entered;
  if (within_ == nullptr) entered.emplace(session_);
  const ContextModule& own = own_module(module, within_ == nullptr ? *entered : *within_);
  CUfunction function = own.function(launch);
  if (function == nullptr) {
    resolve(module, std::span(&launch, 1));
    function = own.function(launch);
  }
  const CUresult status = launch_kernel(session_.driver(), function, stream_, launch, argument);
  if (status == CUDA_SUCCESS) return;
  throw DriverError(describe_launch_failure(session_.driver(), status, launch, session_.info().name) +
                    " (an earlier kernel may have failed)");
}

void StreamDevice::synchronize() {
  const CudaSession::Entered entered(session_);
  session_.refuse_in_capture(stream_, "waiting");
  session_.driver().check(session_.driver().stream_synchronize(stream_), "wait for a stream");
}

}  // namespace packjit
