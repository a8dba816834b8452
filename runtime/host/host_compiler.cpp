#include "runtime/host/host_compiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

#include "runtime/errors.hpp"
#include "runtime/host/child_process.hpp"

namespace packjit::host {
namespace {

constexpr std::string_view kSourceName = "kernel.cpp";
constexpr std::string_view kObjectName = "kernel.so";
constexpr std::size_t kLogLinesShown = 30;
constexpr std::string_view kCompilerAdvice =
    "install one with its assembler and linker (package g++), or set PACKJIT_HOST_COMPILER to the path of g++ (12 or "
    "newer) or clang++ (15 or newer)";

bool is_program(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

/// The full path of a program, or an empty string. A name with a slash is a path already.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string directory(rest.substr(0, colon));
    rest.remove_prefix(std::min(colon + 1, rest.size()));
    std::string path = (directory.empty() ? "." : directory) + "/" + name;
    if (is_program(path)) return path;
  }
  return "";
}

std::vector<std::string> compiler_options() {
  std::vector<std::string> options = {"-x", "c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-Wall",
                                      "-Wno-unknown-pragmas", "-fno-fast-math", "-ffp-contract=off",
                                      // Vector loads view memory as other types, as they may on a GPU.
                                      "-fno-strict-aliasing", "-fno-math-errno"};
#if defined(__x86_64__) || defined(__i386__)
  // Same results without it: fused multiply-add is then a slow library function.
  if (__builtin_cpu_supports("fma")) options.emplace_back("-mfma");
#endif
#if defined(__linux__)
  // A module's names must mean its own functions, whatever else the process has loaded.
  options.emplace_back("-Wl,-Bsymbolic");
#endif
#if defined(PACKJIT_SANITIZE)
  options.emplace_back("-fsanitize=" PACKJIT_SANITIZE);
  options.emplace_back("-fno-omit-frame-pointer");
  options.emplace_back("-g");
  if (std::string_view(PACKJIT_SANITIZE).find("undefined") != std::string_view::npos) {
    options.emplace_back("-fno-sanitize-recover=undefined");
  }
#endif
  return options;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The lines of `text` that a log names as "kernel.cpp:12:".
std::vector<std::string> named_lines(const std::string& text, const std::string& log) {
  const std::vector<std::string_view> lines = split_lines(text);
  std::set<std::size_t> numbers;
  const std::string mark = std::string(kSourceName) + ":";
  for (std::size_t at = log.find(mark); at != std::string::npos; at = log.find(mark, at)) {
    at += mark.size();
    std::size_t number = 0;
    std::from_chars(log.data() + at, log.data() + log.size(), number);
    if (number >= 1 && number <= lines.size()) numbers.insert(number);
  }
  std::vector<std::string> result;
  result.reserve(numbers.size());
  for (const std::size_t number : numbers) result.push_back(fmt::format("{}: {}", number, lines[number - 1]));
  return result;
}

std::string without(std::string text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
  return text;
}

std::string first_lines(const std::string& text, std::size_t count) {
  std::string result;
  const auto lines = split_lines(text);
  for (std::size_t i = 0; i < std::min(count, lines.size()); ++i) result += fmt::format("  {}\n", lines[i]);
  if (lines.size() > count) result += fmt::format("  ... and {} more lines\n", lines.size() - count);
  return result;
}

}  // namespace

std::string find_host_compiler() {
  const char* wanted = std::getenv("PACKJIT_HOST_COMPILER");
  if (wanted != nullptr && *wanted != '\0') {
    std::string path = find_program(wanted);
    if (path.empty()) {
      throw EnvironmentError(fmt::format(
          "host execution needs a C++20 compiler; PACKJIT_HOST_COMPILER is \"{}\", which is not an executable "
          "program; set it to the path of g++ (12 or newer) or clang++ (15 or newer), or unset it",
          wanted));
    }
    return path;
  }
#if defined(PACKJIT_SANITIZE) && defined(PACKJIT_BUILD_COMPILER)
  if (is_program(PACKJIT_BUILD_COMPILER)) return PACKJIT_BUILD_COMPILER;
#endif
  for (const char* name : {"c++", "g++", "clang++"}) {
    std::string path = find_program(name);
    if (!path.empty()) return path;
  }
  throw EnvironmentError(
      "host execution needs a C++20 compiler, and none of c++, g++, clang++ is on PATH; install one (package g++), or "
      "set PACKJIT_HOST_COMPILER to its path");
}

HostCompileError::HostCompileError(const std::string& message, std::string compiler_log,
                                   std::vector<std::string> compiler_options, std::vector<std::string> lines)
    : std::runtime_error(message),
      log(std::move(compiler_log)),
      options(std::move(compiler_options)),
      source_lines(std::move(lines)) {}

PrivateDirectory::PrivateDirectory() {
  const char* variable = std::getenv("TMPDIR");
  std::string name = variable != nullptr && *variable != '\0' ? variable : "/tmp";
  name += "/packjit-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    const std::error_code error(errno, std::generic_category());
    throw EnvironmentError(fmt::format(
        "making a private directory {} for the host compiler failed: {}; set TMPDIR to a directory that can be written",
        name, error.message()));
  }
  path_ = std::move(name);
  kept_[0] = TemporaryPath(path_);
  kept_[1] = TemporaryPath(fmt::format("{}/{}", path_, kSourceName));
  kept_[2] = TemporaryPath(fmt::format("{}/{}", path_, kObjectName));
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

EnvironmentError cannot_compile_generated(const HostCompileError& error) {
  return EnvironmentError(
      fmt::format("{}The source is packjit's own, so the compiler is probably too old or incomplete; {}", error.what(),
                  kCompilerAdvice));
}

std::string compile_host_source(const std::string& compiler, const std::string& text,
                                const PrivateDirectory& directory) {
  const std::string prefix = directory.path() + "/";
  const std::string source = prefix + std::string(kSourceName);
  std::string object = prefix + std::string(kObjectName);
  {
    std::ofstream file(source, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file.flush()) {
      throw EnvironmentError(
          fmt::format("writing {} bytes of host source to {} failed; is the disk full? TMPDIR says where to write",
                      text.size(), source));
    }
  }
  std::vector<std::string> command = {compiler};
  for (std::string& option : compiler_options()) command.push_back(std::move(option));
  command.insert(command.end(), {source, "-o", object});

  ChildResult result;
  try {
    result = run_program(command);
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("the host compiler {} cannot be run: {}", compiler, error.what()));
  }
  std::string log = without(std::move(result.output), prefix);
  if (result.status == 0) {
    std::error_code error;
    if (std::filesystem::is_regular_file(object, error)) return object;
    throw EnvironmentError(
        fmt::format("the host compiler {} ended without an error but wrote no output, so it is no C++ compiler; {}",
                    compiler, kCompilerAdvice));
  }
  // An error of the source names the source. What does not is the compiler's: it died, or lacks an assembler, a linker,
  // an option.
  if (log.find(std::string(kSourceName) + ":") == std::string::npos) {
    throw EnvironmentError(
        fmt::format("the host compiler {} does not work: it ended with status {} and {}{}", compiler, result.status,
                    log.empty() ? "said nothing; " : "said\n" + first_lines(log, kLogLinesShown), kCompilerAdvice));
  }
  std::vector<std::string> lines = named_lines(text, log);
  std::string message =
      fmt::format("compiling host source failed: {} ended with status {}\noptions:", compiler, result.status);
  for (std::size_t i = 1; i < command.size(); ++i) message += fmt::format(" {}", without(command[i], prefix));
  message += fmt::format("\nlog:\n{}", first_lines(log, kLogLinesShown));
  if (!lines.empty()) message += "source:\n";
  for (const std::string& line : lines) message += fmt::format("  {}\n", line);
  throw HostCompileError(message, std::move(log), std::move(command), std::move(lines));
}

}  // namespace packjit::host
