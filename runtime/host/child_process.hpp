#pragma once

#include <string>
#include <vector>

namespace packjit::host {

/// How a program ended and what it said.
struct ChildResult {
  int status = 0;      ///< exit status, or 128 + the signal that ended it
  std::string output;  ///< stdout and stderr together, in the C locale
};

/// Runs a program with exactly these arguments (the first is the program's path) and waits for it, whatever the
/// application has SIGCHLD do. Throws std::system_error where there is no such program, or no /bin/sh, which waits for
/// it; no word of the arguments is read by that. Safe to call from several threads at once.
[[nodiscard]] ChildResult run_program(const std::vector<std::string>& arguments);

}  // namespace packjit::host
