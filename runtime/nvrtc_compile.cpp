#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <stdexcept>
#include <string_view>

#include "runtime/errors.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/nvrtc_library.hpp"

namespace packjit {
namespace {

// The name under which the compiler reports the source's lines.
constexpr std::string_view kSourceName = "kernel.cu";

class Program {
 public:
  Program(const Nvrtc::Library& api, const std::string& source) : api_(api) {
    const nvrtcResult status = api.create_program(&program_, source.c_str(), kSourceName.data(), 0, nullptr, nullptr);
    if (status != NVRTC_SUCCESS) {
      throw std::runtime_error(fmt::format("NVRTC could not create a program: {}", api.error_string(status)));
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { api_.destroy_program(&program_); }

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return api_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  // Text results end in a NUL that is counted; `text` drops it.
  template <typename Size, typename Get>
  std::string bytes(Size size, Get get, bool text, const char* what) {
    std::size_t count = 0;
    nvrtcResult status = size(program_, &count);
    std::string result(count, '\0');
    if (status == NVRTC_SUCCESS && count > 0) status = get(program_, result.data());
    if (status != NVRTC_SUCCESS) {
      throw std::runtime_error(fmt::format("NVRTC gave no {}: {}", what, api_.error_string(status)));
    }
    while (text && !result.empty() && result.back() == '\0') result.pop_back();
    return result;
  }

 private:
  const Nvrtc::Library& api_;
  nvrtcProgram program_ = nullptr;
};

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Lines of the form "kernel.cu(12): error: message".
std::vector<FailingLine> failing_lines(const std::string& log, const std::string& source) {
  const std::vector<std::string_view> source_lines = lines_of(source);
  std::vector<FailingLine> found;
  for (std::string_view line : lines_of(log)) {
    if (!line.starts_with(kSourceName)) continue;
    line.remove_prefix(kSourceName.size());
    if (!line.starts_with('(')) continue;
    FailingLine failing;
    const auto [end, error] = std::from_chars(line.data() + 1, line.data() + line.size(), failing.number);
    if (error != std::errc() || failing.number < 1) continue;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    const std::size_t message = line.find("error");
    if (!line.starts_with("):") || message == std::string_view::npos) continue;
    failing.message = line.substr(message);
    if (static_cast<std::size_t>(failing.number) <= source_lines.size()) {
      failing.text = source_lines[static_cast<std::size_t>(failing.number) - 1];
    }
    found.push_back(std::move(failing));
  }
  return found;
}

}  // namespace

std::vector<std::string> compile_options(const std::string& arch, const CompileSettings& settings) {
  std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++17"};
  if (settings.verbose) options.emplace_back("--ptxas-options=--verbose");
  if (settings.anew) options.emplace_back("--no-cache");
  return options;
}

CompileResult compile(const Nvrtc& nvrtc, const std::string& source, const std::string& arch,
                      const CompileSettings& settings) {
  const Nvrtc::Library& api = nvrtc.library();
  if (std::find(api.archs.begin(), api.archs.end(), arch) == api.archs.end()) {
    throw std::invalid_argument(fmt::format("unknown architecture '{}': NVRTC {} compiles for {}", arch,
                                            nvrtc.version_text(), fmt::join(api.archs, ", ")));
  }
  CompileResult result;
  result.arch = arch;
  result.nvrtc_version = nvrtc.version_text();
  result.options = compile_options(arch, settings);

  const auto start = std::chrono::steady_clock::now();
  Program program(api, source);
  const nvrtcResult status = program.compile(result.options);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.log = program.bytes(api.log_size, api.get_log, true, "log");
  if (status == NVRTC_SUCCESS) {
    result.cubin = program.bytes(api.cubin_size, api.get_cubin, false, "cubin");
    result.ptx = program.bytes(api.ptx_size, api.get_ptx, true, "PTX");
    result.ok = true;
    return result;
  }
  if (status == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE || result.log.find("nvrtc-builtins") != std::string::npos) {
    throw EnvironmentError(fmt::format(
        "NVRTC {} at {} cannot load its companion library libnvrtc-builtins.so.{}, which has to lie in the same folder "
        "and to be of the same version: reinstall that NVRTC or set PACKJIT_NVRTC to another one.\n{}",
        nvrtc.version_text(), nvrtc.path(), nvrtc.version_text(), result.log));
  }
  if (status != NVRTC_ERROR_COMPILATION) {
    throw std::runtime_error(fmt::format("NVRTC {} failed with options {}: {}\n{}", nvrtc.version_text(),
                                         fmt::join(result.options, " "), api.error_string(status), result.log));
  }
  result.failing_lines = failing_lines(result.log, source);
  return result;
}

std::string describe_failure(const CompileResult& result) {
  constexpr std::size_t kShown = 5;
  std::string text = fmt::format("NVRTC {} could not compile the source for {}.", result.nvrtc_version, result.arch);
  for (std::size_t i = 0; i < std::min(kShown, result.failing_lines.size()); ++i) {
    const FailingLine& line = result.failing_lines[i];
    text += fmt::format("\n  line {}: {}\n    {}", line.number, line.text, line.message);
  }
  return text + fmt::format("\noptions: {}\nlog:\n{}", fmt::join(result.options, " "), result.log);
}

}  // namespace packjit
