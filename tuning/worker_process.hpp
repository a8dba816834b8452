#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace packjit {

/// A program that answers lines on its standard output to lines on its standard input. Killed on destruction.
class WorkerProcess {
 public:
  /// The first argument is the program's path. Throws std::system_error where it cannot be started.
  explicit WorkerProcess(const std::vector<std::string>& arguments);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  /// `line` without a newline. What cannot be written is lost: receive() tells that the program has ended.
  void send(const std::string& line);

  enum class Ending { none, ended, late };
  struct Received {
    std::string line;
    Ending ending = Ending::none;  ///< ended: the program closed its output; late: no line came in time
  };
  [[nodiscard]] Received receive(std::chrono::milliseconds within);

  /// Kills it, waits, and says how it ended: "exit status 3", "signal 11 (Segmentation fault)". That is not known where
  /// the process ignores SIGCHLD, which `packjit` does not.
  [[nodiscard]] std::string stop();

 private:
  pid_t child_ = -1;
  int socket_ = -1;
  std::string pending_;
};

/// For the program that is started so: kills it when the one that started it ends, also while a kernel hangs.
void end_with_parent();

}  // namespace packjit
