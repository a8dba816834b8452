#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/capture.hpp"
#include "runtime/compile_for_gpu.hpp"
#include "runtime/cuda_session.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"

namespace packjit::api {

inline constexpr std::uintptr_t kWorkspaceAlignment = 256;  // bytes

/// What one call runs on, for the length of the call and on its thread: a context that is current and a stream, or a
/// host scheduler that nobody else uses meanwhile.
class Lane {
 public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  virtual ~Lane() = default;
  [[nodiscard]] virtual Device& device() = 0;
  [[nodiscard]] virtual const DeviceInfo& info() = 0;
  /// Tells contexts apart, destroyed ones included; 0 for host execution.
  [[nodiscard]] virtual std::uint64_t context() const = 0;
  /// Whether launches on this lane become part of a graph.
  [[nodiscard]] virtual bool is_captured() const = 0;
  /// The library's own scratch memory for launches on this lane, 256-byte aligned.
  [[nodiscard]] virtual void* workspace(std::size_t bytes) = 0;
  /// From memory of a keeper, whatever its stream; waits for what was launched on this lane.
  virtual void read(void* to, const void* from_device, std::size_t bytes) = 0;
};

/// Where a device's calls run. Thread-safe.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;
  /// `handed` is what to_hand_on() gave on another thread.
  [[nodiscard]] virtual std::unique_ptr<Lane> enter(void* stream, void* handed = nullptr) = 0;
  [[nodiscard]] virtual void* to_hand_on() = 0;
  /// A device of its own, for what keeps memory: one thread may use it at a time.
  [[nodiscard]] virtual std::unique_ptr<Device> keeper(void* stream) = 0;
  /// Whether memory of a device, by DLPack's numbers, is memory of this one. Any GPU may be, where the backend is of
  /// the context that is current.
  [[nodiscard]] virtual bool holds(std::int32_t device_type, std::int32_t device_id) const = 0;
  /// Where shapes of calls are recorded, as the environment said when the device was opened; null for nowhere.
  [[nodiscard]] CaptureFile* capture() const { return capture_.get(); }

 private:
  std::unique_ptr<CaptureFile> capture_ = CaptureFile::from_environment();
};

[[nodiscard]] std::unique_ptr<Backend> host_backend();
/// The primary context of GPU `ordinal`, or the one current on the thread that calls.
[[nodiscard]] std::unique_ptr<Backend> cuda_backend(const Driver& driver, std::optional<int> ordinal,
                                                    CompileForGpu compile = compile_for_gpu, SelfCheck check = {});

}  // namespace packjit::api
