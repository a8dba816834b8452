#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "generator/operators.hpp"
#include "runtime/device.hpp"
#include "runtime/host/block_order.hpp"
#include "runtime/host/fiber.hpp"
#include "runtime/host/host_thread.hpp"
#include "runtime/host/random.hpp"

namespace packjit::host {

/// Plays a grid of GPU threads on one operating-system thread.
///
/// Blocks run one after another. Inside a block, a thread runs until it waits at a barrier of the block or at an
/// exchange of its warp (32 consecutive threads); which thread goes next is what HostOrder decides, anew after each
/// barrier:
/// - forward: the lowest thread, each warp as far as it can get; reverse: the highest, likewise;
/// - seeded: any thread that can run, by a generator that depends on the seed only.
/// Threads that never wait share one stack and are not switched at all.
///
/// An asynchronous copy lands when it is issued (forward), when its thread waits for it (reverse), or either (seeded).
///
/// Shared memory is filled with 0xFF before each block and has guard zones that are checked after it.
/// One thread may use it at a time.
class BlockScheduler {
 public:
  explicit BlockScheduler(HostOrder order);

  /// Runs every block of `launch`. `entry` is packjit_enter_NAME of loaded code, `current` the address of its
  /// packjit_thread for the calling operating-system thread, `argument` what the kernel reads.
  /// Throws CheckFailed naming kernel, block and thread when the threads of a block wait for each other in vain, when
  /// an exchange asks a lane that does not exist, when an asynchronous copy is not aligned to its size, or when a guard
  /// zone of shared memory changed. Whatever else the kernel throws passes through. The scheduler can be used again
  /// afterwards.
  void run(const KernelLaunch& launch, void (*entry)(), HostThread** current, const void* argument);

 private:
  enum class Status : std::uint8_t { running, at_barrier, at_exchange, finished };
  struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
    unsigned group;
  };
  struct Thread : HostThread {
    BlockScheduler* scheduler;
    Fiber* fiber;  ///< null until the thread starts, and once it has finished
    unsigned index;
    unsigned value;  ///< given to, then received from an exchange
    int source;
    Status status;
    unsigned gathers;          ///< of this thread in this block so far
    std::vector<Copy> copies;  ///< asynchronous ones that have not landed, in the order of their issue
    unsigned copy_groups;      ///< committed by this thread in this block so far
  };
  struct Warp {
    unsigned live;
    unsigned waiting;
    /// What lanes gave to a gather. Two, taken in turn: a lane that is a gather ahead writes the other one, and none
    /// can be two ahead of a lane that still reads.
    unsigned gathered[2][32][6];
  };
  struct Abandoned {};  ///< thrown to unwind the threads of a block that has failed

  static void serve_fiber(void* self, Fiber& fiber);
  static void sync_block(HostThread* thread);
  static unsigned exchange(HostThread* thread, unsigned value, int lane);
  static const unsigned* gather(HostThread* thread, const unsigned (&values)[6]);
  static void copy_async(HostThread* thread, void* to, const void* from, unsigned bytes);
  static void wait_copies(HostThread* thread);
  static void commit_copies(HostThread* thread);
  static void wait_copies_but(HostThread* thread, unsigned groups_left);

  static void land(Thread& thread, std::vector<Copy>::iterator end);
  void serve(Fiber& fiber);
  void run_to_end(Fiber& fiber, Thread& thread);
  void wait(Thread& thread);
  [[nodiscard]] Thread* pick();
  void start_block(std::uint64_t block);
  void make_ready(unsigned first, unsigned end);
  void release_barrier();
  void finish_exchange(unsigned warp);
  void check_shared();
  void fail(const std::string& message);
  void fail_deadlock();
  [[nodiscard]] std::string where() const;

  HostOrder::Kind kind_;
  Random random_;
  FiberGroup fibers_;

  // Of the launch that runs.
  const KernelLaunch* launch_ = nullptr;
  void (*entry_)() = nullptr;
  HostThread** current_ = nullptr;
  std::optional<BlockOrder> blocks_;
  std::vector<char> shared_storage_;
  char* shared_ = nullptr;

  // Of the block that runs.
  HostIndex block_{};
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;  ///< the next one is at the back
  unsigned finished_ = 0, at_barrier_ = 0;

  std::exception_ptr failure_;
  bool failed_ = false;
};

}  // namespace packjit::host
