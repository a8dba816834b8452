#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "generator/generate.hpp"

namespace packjit {

/// What a device is and what limits it sets. Sizes in bytes.
struct DeviceInfo {
  std::string kind;  ///< "cuda" or "host"
  std::string name;  ///< marketing name, a label only
  std::string arch;  ///< "sm_90", or "host"
  int multiprocessors = 0;
  std::int64_t shared_bytes_per_block = 0;  ///< the largest dynamic shared memory a block can ask for
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;  ///< of a GPU's L2 cache; 0 for host execution
  int clock_mhz = 0;          ///< the highest clock of the multiprocessors; 0 for host execution
  int memory_clock_mhz = 0;   ///< the highest clock of a GPU's memory; 0 for host execution
};

/// Generated source, compiled and loaded on one device.
class Module {
 public:
  virtual ~Module() = default;
};

/// Where kernels run: a GPU through the CUDA driver, or the CPU by host execution.
///
/// Calls are ordered as if on one stream. One Device may be used by one thread at a time; different Device objects by
/// different threads at once. Failures throw (EnvironmentError, CheckFailed, std::runtime_error); after a
/// failed launch the device's memory contents are unspecified but can be released.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual const DeviceInfo& info() const = 0;

  /// Memory with a guard zone of a known pattern on both sides, 256-byte aligned, contents unspecified.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void write(void* to_device, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from_device, std::size_t bytes) = 0;         ///< waits for what was launched
  virtual void copy(void* to_device, const void* from_device, std::size_t bytes) = 0;  ///< the two may not overlap
  virtual void fill(void* on_device, unsigned char value, std::size_t bytes) = 0;
  /// Waits, then throws CheckFailed if a byte of any guard zone changed; the message names the side and the offset.
  virtual void check_guards() = 0;

  /// Generates for this device's target, compiles, loads; the same (Spec, Config) again returns the same Module.
  [[nodiscard]] virtual std::shared_ptr<const Module> load(const Spec& spec, const Config& config) = 0;
  /// Compiles and loads source text as it stands, for hand-edited kernels (CUDA C++ for a GPU, host form for host).
  [[nodiscard]] virtual std::shared_ptr<const Module> load_text(const std::string& text) = 0;
  /// Does what a first launch would do before it launches, so that launch() does only that. Nothing by default.
  virtual void resolve(const Module& /*module*/, std::span<const KernelLaunch> /*launches*/) {}
  /// `argument` is the kernel's one parameter, a struct passed by value.
  virtual void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) = 0;
  virtual void synchronize() = 0;
};

/// Owns device memory; movable, released on destruction. Must not outlive its Device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }  ///< bytes

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// How host execution orders threads and blocks, and when asynchronous copies land. Results must not depend on it.
struct HostOrder {
  enum class Kind { forward, reverse, seeded } kind = Kind::forward;
  std::uint64_t seed = 0;
};

/// Host execution; throws EnvironmentError when no host compiler is found.
[[nodiscard]] std::unique_ptr<Device> open_host_device(HostOrder order = {});
/// The GPU with this ordinal; throws EnvironmentError that says which library, driver or GPU is missing.
[[nodiscard]] std::unique_ptr<Device> open_cuda_device(int ordinal = 0);
/// "cuda", "host", or "auto" (a GPU where there is one; host otherwise). Anything else is std::invalid_argument.
[[nodiscard]] std::unique_ptr<Device> open_device(const std::string& name);

}  // namespace packjit
