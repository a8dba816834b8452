#pragma once

#include <string>
#include <vector>

namespace packjit::host {

/// How a program ended and what it said.
struct ChildResult {
  int status = 0;      ///< exit status, or 128 + the signal that ended it
  std::string output;  ///< stdout and stderr together, in the C locale
};

/// Runs a program with exactly these arguments (the first is the program's path) and waits for it. No shell is
/// involved. Throws std::system_error when it cannot be started. Safe to call from several threads at once.
[[nodiscard]] ChildResult run_program(const std::vector<std::string>& arguments);

}  // namespace packjit::host
