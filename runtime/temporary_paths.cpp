#include "runtime/temporary_paths.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <utility>

namespace packjit {
namespace {

enum State : int { empty, changing, live };

/// Fixed memory, since a signal's handler can neither wait for a lock nor allocate.
struct Slot {
  std::atomic<int> state = empty;
  char path[1024] = {};
};
constexpr int kSlots = 256;
Slot slots[kSlots];
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remove_and_end(int signal_number) {
  for (Slot& slot : slots) {
    if (slot.state == live) unlink(slot.path);
  }
  for (Slot& slot : slots) {  // folders, by now empty
    if (slot.state == live) rmdir(slot.path);
  }
  // Pending until this handler returns; it then ends the process as if nobody had caught it.
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

TemporaryPath::TemporaryPath(const std::string& path) {
  if (path.size() >= sizeof Slot::path) return;
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    int expected = empty;
    if (!slot.state.compare_exchange_strong(expected, changing)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    slot.state = live;
    slot_ = i;
    return;
  }
}

TemporaryPath::~TemporaryPath() {
  if (slot_ >= 0) slots[slot_].state = empty;
}

TemporaryPath::TemporaryPath(TemporaryPath&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

TemporaryPath& TemporaryPath::operator=(TemporaryPath&& other) noexcept {
  TemporaryPath old(std::move(*this));  // given up at the end
  slot_ = std::exchange(other.slot_, -1);
  return *this;
}

void remove_temporaries_on_signals() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old {};
    if (sigaction(signal_number, nullptr, &old) != 0 || old.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    sigfillset(&action.sa_mask);
    sigaction(signal_number, &action, nullptr);
  }
}

}  // namespace packjit
