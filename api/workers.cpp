#include "api/workers.hpp"

#include <algorithm>
#include <utility>

#include "runtime/fork_watch.hpp"

namespace packjit::api {

Workers::Workers() {
  watch_forks();
  forks_ = forks_seen();
}

Workers::~Workers() {
  forget_threads_of_parent();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// In a forked process the threads do not exist; joining them would wait for ever.
void Workers::forget_threads_of_parent() {
  if (forks_ == forks_seen()) return;
  forks_ = forks_seen();
  static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
  threads_.clear();
  idle_ = 0;
}

void Workers::add(std::function<void()> task) {
  constexpr std::size_t kMostThreads = 4;
  const std::size_t most = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  const std::lock_guard lock(mutex_);
  forget_threads_of_parent();
  tasks_.push_back(std::move(task));
  if (idle_ < tasks_.size() && threads_.size() < most) threads_.emplace_back([this] { serve(); });
  changed_.notify_one();
}

void Workers::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace packjit::api
