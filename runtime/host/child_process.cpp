#include "runtime/host/child_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

extern char** environ;

namespace packjit::host {
namespace {

[[noreturn]] void raise(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

/// The environment with messages in English, since they are shown next to ours.
std::vector<char*> environment(std::string& locale) {
  std::vector<char*> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LC_ALL=", 7) != 0) result.push_back(*entry);
  }
  result.push_back(locale.data());
  result.push_back(nullptr);
  return result;
}

std::string read_all(int descriptor) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t got = read(descriptor, part, sizeof part);
    if (got > 0) {
      text.append(part, static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return text;
    }
  }
}

}  // namespace

ChildResult run_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> copies = arguments;  // the interface of posix_spawn wants them writable
  std::vector<char*> pointers;
  pointers.reserve(copies.size() + 1);
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::string locale = "LC_ALL=C";
  std::vector<char*> variables = environment(locale);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) raise(errno, "making a pipe for " + arguments.front());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawn(&child, pointers.front(), &actions, nullptr, pointers.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    raise(error, "starting " + arguments.front());
  }

  ChildResult result;
  result.output = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) raise(errno, "waiting for " + arguments.front());
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace packjit::host
