#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "runtime/cuda_module.hpp"

namespace packjit {

/// Makes the calls of this thread that a stream capture of another thread would forbid (loading, taking memory)
/// harmless to it, while the object lives.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) { driver_.capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() { driver_.capture_mode(&mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// An image loaded in a context that packjit does not own, and its kernels. Internal. Thread-safe.
///
/// Contexts are told apart by their id, since the address of a destroyed one comes again. Unloaded on destruction where
/// the context is current; otherwise it goes with the context.
class ContextModule final : public Module {
 public:
  /// The context is current and has this id. Throws what load_images() does.
  ContextModule(const Driver& driver, const DeviceInfo& gpu, std::uint64_t context_id, const CompileResult& images);
  ContextModule(const ContextModule&) = delete;
  ContextModule& operator=(const ContextModule&) = delete;
  ~ContextModule() override;

  [[nodiscard]] std::uint64_t context_id() const { return context_id_; }

  /// Looks the kernels up, has their code loaded and lets them use their shared memory, which is only ever raised. The
  /// context is current. Throws std::invalid_argument where the GPU has too little.
  void resolve(std::span<const KernelLaunch> launches) const;
  /// Null unless resolve() was called for such a launch. Takes no lock and calls no driver.
  [[nodiscard]] CUfunction function(const KernelLaunch& launch) const;

 private:
  struct Kernel {
    Kernel(std::string name, CUfunction found, std::unique_ptr<Kernel> before)
        : entry(std::move(name)), function(found), next(std::move(before)) {}
    std::string entry;
    CUfunction function;
    std::atomic<std::uint32_t> shared_allowed = kSharedWithoutAsking;
    std::unique_ptr<Kernel> next;  // resolved before it
  };
  [[nodiscard]] Kernel* find(const std::string& entry) const;

  const Driver& driver_;
  const DeviceInfo gpu_;
  std::uint64_t context_id_;
  CUmodule module_;
  mutable std::mutex resolving_;
  mutable std::unique_ptr<Kernel> kernels_;           // grows at the front, under the lock
  mutable std::atomic<Kernel*> published_ = nullptr;  // kernels_, for those without the lock
};

}  // namespace packjit
