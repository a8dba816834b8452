#include "api/workers.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/errors.hpp"
#include "runtime/fork_watch.hpp"

namespace packjit::api {

/// The threads of one process and what they share.
struct Workers::Team {
  const unsigned forks = forks_seen();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::size_t idle = 0;
  bool ending = false;
  std::vector<std::thread> threads;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      changed.wait(lock, [&] { return ending || !tasks.empty(); });
      --idle;
      if (tasks.empty()) return;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // what it holds goes without the lock
      lock.lock();
    }
  }
};

Workers::Workers() {
  watch_forks();
  team_ = new Team;
}

Workers::~Workers() {
  Team& last = team();
  {
    const std::lock_guard lock(last.mutex);
    last.ending = true;
  }
  last.changed.notify_all();
  for (std::thread& thread : last.threads) thread.join();
  delete &last;
}

// A forked process has none of the threads, and one of them may have held the lock: what was is left alone.
Workers::Team& Workers::team() {
  Team* found = team_;
  if (found->forks == forks_seen()) return *found;
  Team* fresh = new Team;
  if (team_.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;  // another thread was faster
  return *found;
}

void Workers::add(std::function<void()> task) {
  constexpr std::size_t kMostThreads = 4;
  const std::size_t most = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  Team& now = team();
  const std::lock_guard lock(now.mutex);
  if (now.idle <= now.tasks.size() && now.threads.size() < most) {
    try {
      now.threads.emplace_back([&now] { now.serve(); });
    } catch (const std::system_error& error) {  // those that there are do it later
      if (now.threads.empty()) {
        throw EnvironmentError(
            fmt::format("could not start a thread that prepares beside the caller: {}; raise the limit of processes "
                        "and threads (ulimit -u), or prepare on the calling thread (packjit_operator_prepare)",
                        error.what()));
      }
    }
  }
  now.tasks.push_back(std::move(task));
  now.changed.notify_one();
}

}  // namespace packjit::api
