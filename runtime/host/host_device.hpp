#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/device.hpp"
#include "runtime/host/block_scheduler.hpp"
#include "runtime/host/guarded_memory.hpp"
#include "runtime/host/host_module.hpp"

namespace packjit::host {

/// The CPU as a device: see "Host execution" in docs/design.md. A launch has finished when launch() returns.
///
/// The launch limits are those of a GPU (1024 threads a block, 2^31-1 by 65,535 blocks, 227 KiB of shared memory), so
/// that a launch that a GPU refuses is refused here as well. Compiled code is shared between all devices of the
/// process.
class HostDevice final : public Device {
 public:
  /// Throws EnvironmentError when there is no host compiler.
  explicit HostDevice(HostOrder order);

  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(void* memory) noexcept override { memory_.release(memory); }
  void write(void* to_device, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from_device, std::size_t bytes) override;
  void copy(void* to_device, const void* from_device, std::size_t bytes) override;
  void fill(void* on_device, unsigned char value, std::size_t bytes) override;
  void check_guards() override { memory_.check(); }

  /// Besides what Device says, throws HostCompileError.
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override;
  [[nodiscard]] std::shared_ptr<const Module> load_text(const std::string& text) override;
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override;
  void synchronize() override {}

  /// Compiles what load() will be asked for, several sources at once on the machine's cores. Throws what the first
  /// failing load() would throw, after all have ended.
  void prepare(std::span<const std::pair<Spec, Config>> pairs);

 private:
  DeviceInfo info_;
  GuardedMemory memory_;
  BlockScheduler scheduler_;
  std::map<std::string, std::shared_ptr<const Module>> loaded_;  ///< by Source::key
};

/// The same for source texts, whatever device they will run on. Thread-safe.
void compile_texts(std::span<const std::string> texts);

}  // namespace packjit::host
