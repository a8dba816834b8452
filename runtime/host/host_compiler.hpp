#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/errors.hpp"
#include "runtime/temporary_paths.hpp"

namespace packjit::host {

/// The path of the C++ compiler that host execution uses: the program named by the environment variable
/// PACKJIT_HOST_COMPILER, else the first of c++, g++, clang++ on PATH. In a sanitized build the compiler that built the
/// library comes before those on PATH, since sanitizer runtimes do not mix. Throws EnvironmentError saying what was
/// looked for and what to do.
[[nodiscard]] std::string find_host_compiler();

/// A source that the host compiler did not accept.
struct HostCompileError : std::runtime_error {
  HostCompileError(const std::string& message, std::string compiler_log, std::vector<std::string> compiler_options,
                   std::vector<std::string> named_lines);
  std::string log;
  std::vector<std::string> options;       ///< the whole command, the compiler's path first
  std::vector<std::string> source_lines;  ///< the lines that the log names: "12: text"
};

/// What to report where the source that failed was generated and not written by a user: a compiler that does not fit.
[[nodiscard]] EnvironmentError cannot_compile_generated(const HostCompileError& error);

/// A directory that only this user can enter; removed with everything in it on destruction.
class PrivateDirectory {
 public:
  PrivateDirectory();  ///< under TMPDIR or /tmp; throws EnvironmentError when that fails
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  TemporaryPath kept_[3];  ///< the folder and the files that compile_host_source makes in it
};

/// Compiles host source into a shared object inside `directory` and returns its path.
/// Contraction of products and sums is off, so that the numbers do not depend on the compiler's mood.
/// Throws HostCompileError where the compiler's log names the source; EnvironmentError when the compiler cannot be
/// started, fails for a reason of its own or writes nothing, or when a file cannot be written.
/// Several threads may compile at once, each in a directory of its own.
[[nodiscard]] std::string compile_host_source(const std::string& compiler, const std::string& text,
                                              const PrivateDirectory& directory);

}  // namespace packjit::host
