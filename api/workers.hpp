#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace packjit::api {

/// A few threads that do what is asked of them in turn. They are started by the first task. Thread-safe.
class Workers {
 public:
  Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  /// Waits until every task has been done.
  ~Workers();
  /// `task` lets no exception out.
  void add(std::function<void()> task);

 private:
  void serve();
  void forget_threads_of_parent();

  unsigned forks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace packjit::api
