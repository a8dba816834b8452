#include "tuning/worker_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

extern char** environ;

namespace packjit {

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments) {
  // Sockets, so that writing to a program that has ended gives an error instead of a signal.
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "making a socket for " + arguments.front());
  }
  std::vector<std::string> copies = arguments;  // the interface of posix_spawn wants them writable
  std::vector<char*> pointers;
  pointers.reserve(copies.size() + 1);
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int error = posix_spawn(&child_, pointers.front(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    throw std::system_error(error, std::generic_category(), "starting " + arguments.front());
  }
  socket_ = ends[0];
}

WorkerProcess::~WorkerProcess() {
  if (child_ > 0) static_cast<void>(stop());
}

void WorkerProcess::send(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t sent = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return;
    if (sent > 0) done += static_cast<std::size_t>(sent);
  }
}

WorkerProcess::Received WorkerProcess::receive(std::chrono::milliseconds within) {
  using SteadyClock = std::chrono::steady_clock;
  const SteadyClock::time_point deadline = SteadyClock::now() + within;
  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      Received received{pending_.substr(0, end)};
      pending_.erase(0, end + 1);
      return received;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
    pollfd waiting{socket_, POLLIN, 0};
    const int ready = left.count() > 0 ? poll(&waiting, 1, static_cast<int>(left.count())) : 0;
    if (ready == 0) return {{}, Ending::late};
    if (ready < 0) continue;  // a signal
    std::array<char, 65536> part{};
    const ssize_t got = read(socket_, part.data(), part.size());
    if (got > 0) {
      pending_.append(part.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return {{}, Ending::ended};
    }
  }
}

std::string WorkerProcess::stop() {
  close(socket_);
  // One that is on its way out tells why; any other is killed.
  constexpr int kLooks = 20, kBetweenLooks = 50;  // milliseconds
  int status = 0;
  pid_t ended = 0;
  for (int look = 0; look < kLooks && (ended = waitpid(child_, &status, WNOHANG)) == 0; ++look) {
    poll(nullptr, 0, kBetweenLooks);
  }
  if (ended == 0) {
    kill(child_, SIGKILL);
    while ((ended = waitpid(child_, &status, 0)) < 0 && errno == EINTR) {
    }
  }
  child_ = -1;
  if (ended < 0) return "a status that is not known, since SIGCHLD is ignored or another part waits for all children";
  if (WIFEXITED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
  return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
}

void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace packjit
