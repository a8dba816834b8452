#include "runtime/host/child_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
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

/// Runs its arguments as they are and writes the exit status to descriptor 3, which they do not get. How a child of
/// ours has ended cannot be relied on: it is lost where the application ignores SIGCHLD or waits for any child. A
/// fork() of ours that waits would be one of the whole application, with its memory and its handlers.
constexpr const char* kRunAndTell = R"("$@" 3>&-; printf %d $? >&3)";
constexpr int kStatusDescriptor = 3;

struct Pipe {
  int out, in;
};
/// With descriptors beyond those that the child gets, also where the application has closed some of these.
Pipe make_pipe(const std::string& program) {
  constexpr int kBeyond = 10;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) raise(errno, "making a pipe for " + program);
  const Pipe moved = {fcntl(ends[0], F_DUPFD_CLOEXEC, kBeyond), fcntl(ends[1], F_DUPFD_CLOEXEC, kBeyond)};
  const int error = errno;
  close(ends[0]);
  close(ends[1]);
  if (moved.out >= 0 && moved.in >= 0) return moved;
  for (const int end : {moved.out, moved.in}) {
    if (end >= 0) close(end);
  }
  raise(error, "making a pipe for " + program);
}

}  // namespace

ChildResult run_program(const std::vector<std::string>& arguments) {
  if (access(arguments.front().c_str(), X_OK) != 0) raise(errno, "starting " + arguments.front());
  constexpr const char* kShell = "/bin/sh";
  std::vector<std::string> copies = {kShell, "-c", kRunAndTell, kShell};  // posix_spawn wants them writable
  copies.insert(copies.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(copies.size() + 1);
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::string locale = "LC_ALL=C";
  std::vector<char*> variables = environment(locale);

  const Pipe output = make_pipe(arguments.front()), status = make_pipe(arguments.front());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output.in, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.in, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, status.in, kStatusDescriptor);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // The shell has to wait, whatever the application ignores or blocks.
  sigset_t none{}, waiting{};
  sigemptyset(&none);
  sigemptyset(&waiting);
  sigaddset(&waiting, SIGCHLD);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigdefault(&attributes, &waiting);
  posix_spawnattr_setsigmask(&attributes, &none);
  pid_t child = 0;
  const int error = posix_spawn(&child, kShell, &actions, &attributes, pointers.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(output.in);
  close(status.in);
  ChildResult result;
  std::string told;
  if (error == 0) {
    result.output = read_all(output.out);
    told = read_all(status.out);
  }
  close(output.out);
  close(status.out);
  if (error != 0) raise(error, std::string("starting ") + kShell + " for " + arguments.front());
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (std::from_chars(told.data(), told.data() + told.size(), result.status).ec != std::errc()) {
    raise(ECANCELED, "running " + arguments.front() + ", which ended together with the shell that waits for it");
  }
  return result;
}

}  // namespace packjit::host
