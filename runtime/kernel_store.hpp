#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "generator/operators.hpp"
#include "runtime/context_module.hpp"

namespace packjit {

/// Which context something was loaded in. An address with another id is another context, and the first one is gone.
struct ContextName {
  CUcontext address = nullptr;
  std::uint64_t id = 0;
};

/// Modules by Spec, Config and context. Internal. Thread-safe; its lock is held for comparisons only, never while
/// something compiles or loads.
class KernelStore {
 public:
  using Modules = std::shared_ptr<const ContextModule>;

  /// Null where it has not been loaded, or is still being loaded.
  [[nodiscard]] Modules find(const Spec& spec, const Config& config, std::uint64_t context_id) const;
  /// What is there, or what `make` gives; threads that ask for the same wait for one of them. A failure is not kept.
  [[nodiscard]] Modules load(const Spec& spec, const Config& config, const ContextName& context,
                             const std::function<Modules()>& make);
  void clear();

 private:
  struct Entry {
    Spec spec;
    Config config;
    ContextName context;
    std::shared_future<Modules> module;
  };
  [[nodiscard]] const Entry* look(const Spec& spec, const Config& config, std::uint64_t context_id) const;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace packjit
