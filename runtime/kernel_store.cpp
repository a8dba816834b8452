#include "runtime/kernel_store.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace packjit {

const KernelStore::Entry* KernelStore::look(const Spec& spec, const Config& config, std::uint64_t context_id) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.context.id == context_id && entry.spec == spec && entry.config == config;
  });
  return found == entries_.end() ? nullptr : &*found;
}

KernelStore::Modules KernelStore::find(const Spec& spec, const Config& config, std::uint64_t context_id) const {
  const std::lock_guard lock(mutex_);
  const Entry* entry = look(spec, config, context_id);
  const bool ready = entry != nullptr && entry->module.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return ready ? entry->module.get() : nullptr;
}

KernelStore::Modules KernelStore::load(const Spec& spec, const Config& config, const ContextName& context,
                                       const std::function<Modules()>& make) {
  std::promise<Modules> promise;
  std::shared_future<Modules> others;
  std::vector<Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    if (const Entry* entry = look(spec, config, context.id)) {
      others = entry->module;
    } else {
      const auto kept = std::partition(entries_.begin(), entries_.end(), [&](const Entry& e) {
        return e.context.address != context.address || e.context.id == context.id;
      });
      std::move(kept, entries_.end(), std::back_inserter(gone));
      entries_.erase(kept, entries_.end());
      entries_.push_back({spec, config, context, promise.get_future().share()});
    }
  }
  if (others.valid()) return others.get();
  const auto forget = [&] {
    const std::lock_guard lock(mutex_);
    const Entry* entry = look(spec, config, context.id);
    if (entry != nullptr) entries_.erase(entries_.begin() + (entry - entries_.data()));
  };
  try {
    Modules module = make();
    promise.set_value(module);
    return module;
  } catch (...) {
    forget();
    promise.set_exception(std::current_exception());
    throw;
  }
}

void KernelStore::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace packjit
