#pragma once

#include <memory>
#include <string>

#include "runtime/device.hpp"
#include "runtime/host/host_thread.hpp"

namespace packjit::host {

/// Host source, compiled and loaded into this process. Immutable; any thread may use it.
class HostModule final : public Module {
 public:
  using Entry = void (*)();

  /// Compiles `text` and loads it. Throws HostCompileError or EnvironmentError; std::invalid_argument when the text is
  /// not the host form that the generator prints.
  HostModule(const std::string& compiler, const std::string& text);
  ~HostModule() override;
  HostModule(const HostModule&) = delete;
  HostModule& operator=(const HostModule&) = delete;

  /// packjit_enter_NAME; throws std::invalid_argument naming it when the module has no such kernel.
  [[nodiscard]] Entry entry(const std::string& kernel) const;
  /// Where the calling operating-system thread's `packjit_thread` lies.
  [[nodiscard]] HostThread** current_thread() const;

 private:
  void* handle_ = nullptr;
};

/// The module of a source text, compiled at the first call for it in this process and kept until the process ends.
/// Threads that ask for the same text at once wait for one compile. A failed compile is not kept. Thread-safe.
[[nodiscard]] std::shared_ptr<const HostModule> shared_host_module(const std::string& text);

/// How many sources shared_host_module has handed to the compiler so far.
[[nodiscard]] std::size_t host_compiles();

}  // namespace packjit::host
