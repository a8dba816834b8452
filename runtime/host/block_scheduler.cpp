#include "runtime/host/block_scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/errors.hpp"
#include "runtime/host/guard_zone.hpp"

namespace packjit::host {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kSharedAlignment = 128;
// Checked after every block, so shorter than the zones of a device buffer.
constexpr std::size_t kSharedGuardBytes = 1024;
constexpr unsigned char kPoison = 0xff;
constexpr int kEveryLane = std::numeric_limits<int>::min();  // what a gather asks for

}  // namespace

BlockScheduler::BlockScheduler(HostOrder order)
    : kind_(order.kind), random_(order.seed), fibers_(&BlockScheduler::serve_fiber, this) {}

void BlockScheduler::run(const KernelLaunch& launch, void (*entry)(), HostThread** current, const void* argument) {
  launch_ = &launch;
  entry_ = entry;
  current_ = current;
  failed_ = false;
  failure_ = nullptr;

  shared_storage_.resize(kSharedAlignment + 2 * kSharedGuardBytes + launch.shared_bytes);
  const auto base = reinterpret_cast<std::uintptr_t>(shared_storage_.data()) + kSharedGuardBytes;
  shared_ =
      shared_storage_.data() + kSharedGuardBytes + (kSharedAlignment - base % kSharedAlignment) % kSharedAlignment;
  write_guard(shared_ - kSharedGuardBytes, kSharedGuardBytes);
  write_guard(shared_ + launch.shared_bytes, kSharedGuardBytes);

  threads_.resize(launch.block);
  warps_.resize((launch.block + kWarp - 1) / kWarp);
  ready_.reserve(launch.block);
  for (unsigned i = 0; i < launch.block; ++i) {
    Thread& thread = threads_[i];
    thread.thread = {i, 0, 0};
    thread.block_size = {launch.block, 1, 1};
    thread.grid_size = {launch.grid_x, launch.grid_y, 1};
    thread.argument = argument;
    thread.shared = shared_;
    thread.sync_block = &BlockScheduler::sync_block;
    thread.exchange = &BlockScheduler::exchange;
    thread.gather = &BlockScheduler::gather;
    thread.copy_async = &BlockScheduler::copy_async;
    thread.wait_copies = &BlockScheduler::wait_copies;
    thread.commit_copies = &BlockScheduler::commit_copies;
    thread.wait_copies_but = &BlockScheduler::wait_copies_but;
    thread.scheduler = this;
    thread.fiber = nullptr;
    thread.index = i;
  }

  blocks_.emplace(kind_, std::uint64_t{launch.grid_x} * launch.grid_y, random_);
  std::uint64_t first = 0;
  if (!blocks_->take(first)) return;
  start_block(first);
  Fiber& fiber = fibers_.take();
  fiber.task = pick();
  fibers_.enter(fiber);

  if (failed_) {
    // Threads that still wait are continued once, to unwind and to give their fibers back.
    for (Thread& thread : threads_) {
      if (thread.fiber != nullptr) fibers_.enter(*thread.fiber);
    }
  }
  *current_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BlockScheduler::serve_fiber(void* self, Fiber& fiber) { static_cast<BlockScheduler*>(self)->serve(fiber); }

void BlockScheduler::serve(Fiber& fiber) {
  for (;;) {
    run_to_end(fiber, *static_cast<Thread*>(fiber.task));
    Thread* next = pick();
    if (next != nullptr && next->fiber == nullptr) {
      fiber.task = next;  // a thread that has not started can do so on this very stack
      continue;
    }
    fibers_.put_back(fiber);
    if (next == nullptr) {
      fibers_.leave();
    } else {
      fibers_.switch_to(*next->fiber);
    }
  }
}

void BlockScheduler::run_to_end(Fiber& fiber, Thread& thread) {
  thread.fiber = &fiber;
  thread.block = block_;
  *current_ = &thread;
  try {
    entry_();
  } catch (const Abandoned&) {
  } catch (...) {
    if (!failed_) failure_ = std::current_exception();
    failed_ = true;
  }
  thread.fiber = nullptr;
  if (failed_) return;
  thread.status = Status::finished;
  ++finished_;
  Warp& warp = warps_[thread.index / kWarp];
  --warp.live;
  if (warp.live != 0 && warp.waiting == warp.live) finish_exchange(thread.index / kWarp);
}

void BlockScheduler::sync_block(HostThread* host_thread) {
  auto& thread = *static_cast<Thread*>(host_thread);
  thread.status = Status::at_barrier;
  ++thread.scheduler->at_barrier_;
  thread.scheduler->wait(thread);
}

unsigned BlockScheduler::exchange(HostThread* host_thread, unsigned value, int lane) {
  auto& thread = *static_cast<Thread*>(host_thread);
  BlockScheduler& self = *thread.scheduler;
  thread.value = value;
  thread.source = lane;
  thread.status = Status::at_exchange;
  Warp& warp = self.warps_[thread.index / kWarp];
  if (++warp.waiting == warp.live) self.finish_exchange(thread.index / kWarp);
  self.wait(thread);
  return thread.value;
}

const unsigned* BlockScheduler::gather(HostThread* host_thread, const unsigned (&values)[6]) {
  auto& thread = *static_cast<Thread*>(host_thread);
  BlockScheduler& self = *thread.scheduler;
  Warp& warp = self.warps_[thread.index / kWarp];
  auto& gathered = warp.gathered[thread.gathers++ % 2];
  std::copy(std::begin(values), std::end(values), gathered[thread.index % kWarp]);
  (void)exchange(host_thread, 0, kEveryLane);  // waits for the others
  return &gathered[0][0];
}

void BlockScheduler::copy_async(HostThread* host_thread, void* to, const void* from, unsigned bytes) {
  auto& thread = *static_cast<Thread*>(host_thread);
  BlockScheduler& self = *thread.scheduler;
  const std::pair<const char*, const void*> ends[] = {{"from", from}, {"to", to}};
  for (const auto& [side, address] : ends) {
    if (reinterpret_cast<std::uintptr_t>(address) % bytes == 0) continue;
    self.fail(
        fmt::format("{}: thread {} copies {} bytes asynchronously {} an address that is no multiple of {}; a GPU "
                    "stops such a kernel",
                    self.where(), thread.index, bytes, side, bytes));
    throw Abandoned{};
  }
  const bool now =
      self.kind_ == HostOrder::Kind::forward || (self.kind_ == HostOrder::Kind::seeded && self.random_.below(2) == 0);
  if (now) {
    std::memcpy(to, from, bytes);
  } else {
    thread.copies.push_back({to, from, bytes, thread.copy_groups});
  }
}

/// The thread's copies before `end` land.
void BlockScheduler::land(Thread& thread, std::vector<Copy>::iterator end) {
  for (auto copy = thread.copies.begin(); copy != end; ++copy) std::memcpy(copy->to, copy->from, copy->bytes);
  thread.copies.erase(thread.copies.begin(), end);
}

void BlockScheduler::wait_copies(HostThread* host_thread) {
  auto& thread = *static_cast<Thread*>(host_thread);
  land(thread, thread.copies.end());
}

void BlockScheduler::commit_copies(HostThread* host_thread) { ++static_cast<Thread*>(host_thread)->copy_groups; }

void BlockScheduler::wait_copies_but(HostThread* host_thread, unsigned groups_left) {
  auto& thread = *static_cast<Thread*>(host_thread);
  const auto may_wait = [&](const Copy& copy) { return copy.group + groups_left >= thread.copy_groups; };
  land(thread, std::find_if(thread.copies.begin(), thread.copies.end(), may_wait));
}

void BlockScheduler::wait(Thread& thread) {
  Thread* next = pick();
  if (next != &thread) {
    if (next == nullptr) {
      fibers_.leave();
    } else if (next->fiber != nullptr) {
      fibers_.switch_to(*next->fiber);
    } else {
      Fiber& fiber = fibers_.take();
      fiber.task = next;
      fibers_.switch_to(fiber);
    }
    if (failed_) throw Abandoned{};
  }
  *current_ = &thread;
}

/// The thread that goes next, or null when the grid is done or has failed.
BlockScheduler::Thread* BlockScheduler::pick() {
  for (;;) {
    if (failed_) return nullptr;
    if (!ready_.empty()) {
      if (kind_ == HostOrder::Kind::seeded) {
        std::swap(ready_[random_.below(static_cast<std::uint32_t>(ready_.size()))], ready_.back());
      }
      Thread* next = ready_.back();
      ready_.pop_back();
      return next;
    }
    if (finished_ == threads_.size()) {
      check_shared();
      std::uint64_t block = 0;
      if (failed_ || !blocks_->take(block)) return nullptr;
      start_block(block);
    } else if (at_barrier_ == threads_.size()) {
      release_barrier();
    } else {
      fail_deadlock();
    }
  }
}

void BlockScheduler::start_block(std::uint64_t block) {
  block_ = {static_cast<unsigned>(block % launch_->grid_x), static_cast<unsigned>(block / launch_->grid_x), 0};
  if (launch_->shared_bytes != 0) std::memset(shared_, kPoison, launch_->shared_bytes);
  finished_ = 0;
  at_barrier_ = 0;
  const auto count = static_cast<unsigned>(threads_.size());
  for (unsigned first = 0; first < count; first += kWarp) {
    warps_[first / kWarp].live = std::min(kWarp, count - first);
    warps_[first / kWarp].waiting = 0;
  }
  ready_.clear();
  for (Thread& thread : threads_) {
    thread.status = Status::running;
    thread.gathers = 0;
    thread.copies.clear();
    thread.copy_groups = 0;
  }
  make_ready(0, count);
}

/// Every unfinished thread in [first, end) can run.
void BlockScheduler::make_ready(unsigned first, unsigned end) {
  for (unsigned i = first; i < end; ++i) {
    Thread& thread = threads_[kind_ == HostOrder::Kind::forward ? end - 1 - (i - first) : i];
    if (thread.status == Status::finished) continue;
    thread.status = Status::running;
    ready_.push_back(&thread);
  }
}

void BlockScheduler::release_barrier() {
  at_barrier_ = 0;
  make_ready(0, static_cast<unsigned>(threads_.size()));
}

void BlockScheduler::finish_exchange(unsigned warp) {
  const unsigned first = warp * kWarp;
  const unsigned end = std::min(first + kWarp, static_cast<unsigned>(threads_.size()));
  unsigned given[kWarp] = {};
  for (unsigned i = first; i < end; ++i) given[i - first] = threads_[i].value;
  warps_[warp].waiting = 0;
  // The first lane that has left the kernel or never was.
  unsigned missing = 0;
  while (first + missing < end && threads_[first + missing].status != Status::finished) ++missing;
  for (unsigned i = first; i < end; ++i) {
    Thread& thread = threads_[i];
    if (thread.status == Status::finished) continue;
    if (thread.source == kEveryLane) thread.source = static_cast<int>(missing < kWarp ? missing : i - first);
    const auto source = static_cast<unsigned>(thread.source);
    const bool exists = thread.source >= 0 && source < end - first;
    if (!exists || threads_[first + source].status == Status::finished) {
      fail(
          fmt::format("{}: thread {} asks lane {} of its warp for a value in an exchange, but that lane {}; on a GPU "
                      "the value is undefined",
                      where(), thread.index, thread.source, exists ? "has left the kernel" : "does not exist"));
      return;
    }
    thread.value = given[source];
  }
  make_ready(first, end);
}

void BlockScheduler::check_shared() {
  if (const auto offset = last_damage(shared_ - kSharedGuardBytes, kSharedGuardBytes)) {
    fail(fmt::format("{}: wrote {} bytes before the start of its {} bytes of shared memory", where(),
                     kSharedGuardBytes - *offset, launch_->shared_bytes));
  } else if (const auto past = first_damage(shared_ + launch_->shared_bytes, kSharedGuardBytes)) {
    fail(fmt::format("{}: wrote {} bytes past the end of its {} bytes of shared memory", where(), *past + 1,
                     launch_->shared_bytes));
  }
}

void BlockScheduler::fail(const std::string& message) {
  if (!failed_) failure_ = std::make_exception_ptr(CheckFailed(message));
  failed_ = true;
}

void BlockScheduler::fail_deadlock() {
  std::string state;
  const std::pair<Status, const char*> kinds[] = {{Status::at_barrier, "wait at the barrier of the block (sync_block)"},
                                                  {Status::at_exchange, "wait at an exchange of their warp"},
                                                  {Status::finished, "have left the kernel"}};
  for (const auto& [status, meaning] : kinds) {
    const auto is = [status = status](const Thread& thread) { return thread.status == status; };
    const auto first = std::find_if(threads_.begin(), threads_.end(), is);
    if (first == threads_.end()) continue;
    state += fmt::format("{}{} of {} threads {} (the first is thread {})", state.empty() ? "" : ", ",
                         std::count_if(threads_.begin(), threads_.end(), is), threads_.size(), meaning, first->index);
  }
  fail(fmt::format("{}: the threads wait for each other in vain: {}; every thread must reach the same barriers",
                   where(), state));
}

std::string BlockScheduler::where() const {
  return fmt::format("host execution of kernel {}, block ({}, {})", launch_->entry, block_.x, block_.y);
}

}  // namespace packjit::host
