#include "runtime/fork_watch.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace packjit {
namespace {
std::atomic<unsigned> forks = 0;
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }); });
}

unsigned forks_seen() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace packjit
