#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "runtime/check_record.hpp"
#include "runtime/compile_for_gpu.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "runtime/kernel_store.hpp"

namespace packjit {

/// How a session makes sure of a kernel before its first use on a kind of GPU. Without `run` it does not.
struct SelfCheck {
  /// Runs the kernel of this pair on the device, which has it loaded, and throws CheckFailed where a result is wrong.
  /// Called from several threads at once, each with a device of its own.
  std::function<void(Device& device, const Spec& spec, const Config& config)> run;
  /// Whether the kernel passed before, and that it has passed now. Both may be empty.
  std::function<bool(const CheckRecord& record)> has_passed;
  std::function<void(const CheckRecord& record)> remember;
};

/// GPUs as a host application has them: contexts and streams that it owns. Internal. Thread-safe.
///
/// Kernels are loaded once a context. What is warm takes no lock that compiling or loading holds, and makes no system
/// call of its own. CudaDevice, by contrast, owns its stream and guards its memory.
class CudaSession {
 public:
  /// The primary context of GPU `ordinal`, or, with none, whatever context is current on the thread that calls. Throws
  /// EnvironmentError where there is no such GPU.
  CudaSession(const Driver& driver, std::optional<int> ordinal, CompileForGpu compile = compile_for_gpu,
              SelfCheck check = {});
  CudaSession(const CudaSession&) = delete;
  CudaSession& operator=(const CudaSession&) = delete;
  ~CudaSession();

  /// The session's context, current on this thread while the object lives; the one before comes back afterwards.
  class Entered {
   public:
    /// `handed` stands for the current context on threads that have none. Throws EnvironmentError in a process that was
    /// forked since the session began, and where no context is current.
    explicit Entered(CudaSession& session, CUcontext handed = nullptr);
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered();
    [[nodiscard]] const ContextName& context() const { return context_; }

   private:
    const Driver& driver_;
    ContextName context_;
    bool pushed_ = false;
  };

  [[nodiscard]] const Driver& driver() const { return driver_; }
  /// Of the current context's GPU. The driver is asked once a GPU.
  [[nodiscard]] const DeviceInfo& info();
  /// The context current on this thread where that is the session's, for use as `handed` on another one.
  [[nodiscard]] CUcontext to_hand_on() const;
  /// Whether work given to the stream becomes part of a graph. The capture stays valid.
  [[nodiscard]] bool is_captured(CUstream stream) const;
  /// Throws NotPreparedInCapture, naming `what`, where it is.
  void refuse_in_capture(CUstream stream, const std::string& what) const;

  /// The module in the entered context; generates, compiles, loads and checks it where that was not done. Throws
  /// NotPreparedInCapture where it would have to and `stream` is being captured, and what check_kernel() does. A kernel
  /// that has failed is never given out.
  [[nodiscard]] std::shared_ptr<const ContextModule> load(const Entered& entered, CUstream stream, const Spec& spec,
                                                          const Config& config);
  /// Scratch memory for launches on one stream, 256-byte aligned. What was given before stays valid until the session
  /// ends: graphs may hold it. Throws OutOfMemory, and NotPreparedInCapture where more would have to be taken.
  [[nodiscard]] void* workspace(const Entered& entered, CUstream stream, std::size_t bytes);
  /// Memory of the entered context. Throws OutOfMemory.
  [[nodiscard]] CUdeviceptr allocate(std::size_t bytes);
  /// Takes over memory of the entered context until the session ends, for graphs that hold it.
  void keep(const Entered& entered, CUdeviceptr memory);

 private:
  /// CUDA's default stream of a thread has one handle in all of them; the driver's number for it tells them apart.
  struct StreamName {
    CUstream handle;
    unsigned long long thread_stream;  // 0: the handle is enough
    friend bool operator==(const StreamName&, const StreamName&) = default;
  };
  struct Scratch {
    ContextName context;
    StreamName stream;
    CUdeviceptr memory;
    std::size_t bytes;  // 0: memory of a map, which is not lent
  };
  [[nodiscard]] StreamName name_of_stream(CUstream stream) const;
  [[nodiscard]] const Scratch* scratch_for(const Entered& entered, StreamName stream, std::size_t bytes) const;
  [[nodiscard]] CUcontext retain();

  const Driver& driver_;
  CompileForGpu compile_;
  SelfCheck check_;
  unsigned forks_;
  std::optional<CUdevice> device_;            // whose primary context it is
  std::atomic<CUcontext> primary_ = nullptr;  // changes where the process resets the GPU
  KernelStore kernels_;
  mutable std::shared_mutex scratch_mutex_;
  std::vector<Scratch> scratch_;
  std::mutex info_mutex_;
  std::map<CUdevice, DeviceInfo> infos_;
};

}  // namespace packjit
