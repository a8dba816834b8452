#pragma once

#include <atomic>
#include <functional>

namespace packjit::api {

/// A few threads that do what is asked of them in turn. They are started by the first task. Thread-safe.
class Workers {
 public:
  Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  /// Waits until every task has been done.
  ~Workers();
  /// `task` lets no exception out. Throws EnvironmentError where no thread can be started; then `task` is not done.
  void add(std::function<void()> task);

 private:
  struct Team;
  Team& team();
  std::atomic<Team*> team_;
};

}  // namespace packjit::api
