#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/disassembler.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "database/shipped.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/database_file.hpp"
#include "runtime/disk_cache.hpp"
#include "runtime/host/child_process.hpp"
#include "runtime/host/host_compiler.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/settings.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

/// What was found. A `problem` is empty where the thing works, else it says what is missing and what to do.
struct Findings {
  std::shared_ptr<const Nvrtc> nvrtc;
  std::string nvrtc_problem;
  DriverSurvey driver;
  std::string host_compiler, host_compiler_version, host_compiler_problem;
  CacheLocation cache;
  DiskCache::Usage cache_usage;
  std::string cache_problem;
  std::string self_check_problem;
  DatabaseLocation databases;
  std::vector<std::string> database_names;  ///< without ending
  std::string database_problem;
  std::string capture_problem;
};

/// Databases that are off are nobody's fault.
std::string missing_database(const Findings& found) {
  if (found.databases.off || found.database_problem.empty()) return {};
  return fmt::format("tuned Configs of this user are not used: {}", found.database_problem);
}

/// A limit of 0 bytes turns the cache off on purpose.
std::string missing_cache(const Findings& found) {
  if (found.cache.bytes == 0 || found.cache_problem.empty()) return {};
  return fmt::format("compiled kernels are not kept on disk: {}", found.cache_problem);
}

/// Where recording would fail. The file itself is made by the first call, and not here.
std::string capture_problem() {
  const std::optional<std::string> path = environment("PACKJIT_CAPTURE");
  if (!path) return {};
  const auto refused = [&](std::string_view why) {
    return fmt::format(
        "PACKJIT_CAPTURE is {}: shapes will not be recorded: {}; name a file in a folder that you may "
        "write to",
        *path, why);
  };
  std::error_code error;
  const auto status = std::filesystem::status(*path, error);
  if (std::filesystem::is_directory(status)) return refused("it is a folder");
  const bool is_there = std::filesystem::exists(status);
  if (is_there && !std::filesystem::is_regular_file(status)) return refused("it is no regular file");
  std::filesystem::path folder = std::filesystem::path(*path).parent_path();
  if (folder.empty()) folder = ".";
  if (access(is_there ? path->c_str() : folder.c_str(), is_there ? W_OK : W_OK | X_OK) == 0) return {};
  return refused(std::error_code(errno, std::generic_category()).message());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A library that opens is not yet one that compiles: its companion library may be missing.
std::string nvrtc_problem(const Nvrtc& nvrtc) {
  try {
    const CompileResult result =
        compile(nvrtc, "extern \"C\" __global__ void probe(float* p) { *p = 1.0f; }\n", nvrtc.archs().back());
    return result.ok ? std::string() : describe_failure(result);
  } catch (const std::exception& error) {
    return error.what();
  }
}

Findings look_around() {
  Findings found;
  try {
    found.nvrtc = Nvrtc::find();
    found.nvrtc_problem = nvrtc_problem(*found.nvrtc);
  } catch (const std::exception& error) {
    found.nvrtc_problem = error.what();
  }
  found.driver = survey_driver();
  try {
    found.host_compiler = host::find_host_compiler();
    const host::ChildResult version = host::run_program({found.host_compiler, "--version"});
    found.host_compiler_version = first_line(version.output);
    if (version.status != 0) {
      found.host_compiler_problem = fmt::format(
          "'{} --version' ended with exit status {}; set PACKJIT_HOST_COMPILER to a "
          "C++ compiler",
          found.host_compiler, version.status);
    }
  } catch (const std::exception& error) {
    found.host_compiler_problem = error.what();
  }
  found.cache = cache_location();
  // A folder that is not there yet holds nothing, and is made by the first compile.
  const auto disk = DiskCache::open(posix_file_system(), found.cache, system_clock(), &write_log,
                                    DiskCache::Missing::leave, found.cache_problem);
  if (disk != nullptr) found.cache_usage = disk->usage();
  static_cast<void>(self_check_setting(found.self_check_problem));
  found.capture_problem = capture_problem();
  found.databases = database_location();
  found.database_problem = found.databases.off ? "PACKJIT_DATABASE_DIR is off" : found.databases.problem;
  try {
    if (found.database_problem.empty()) {
      found.database_names = database_stems(posix_file_system(), found.databases.folder);
    }
  } catch (const std::exception& error) {
    found.database_problem = error.what();
  }
  return found;
}

// The lines of a list item, those after the first set in.
std::string indented(const std::string& text) {
  std::string result;
  for (char c : text) result += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return result;
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json_of(const Findings& found) {
  Json json;
  json["nvrtc"] = {{"found", found.nvrtc != nullptr}, {"usable", found.nvrtc_problem.empty()}};
  if (found.nvrtc != nullptr) {
    json["nvrtc"]["version"] = found.nvrtc->version_text();
    json["nvrtc"]["build"] = found.nvrtc->build();
    json["nvrtc"]["path"] = found.nvrtc->path();
    json["nvrtc"]["found_by"] = found.nvrtc->origin();
    json["nvrtc"]["archs"] = found.nvrtc->archs();
  }
  json["nvrtc"]["problem"] = or_null(found.nvrtc_problem);
  json["driver"] = {{"found", found.driver.found},
                    {"path", or_null(found.driver.path)},
                    {"cuda_version", or_null(found.driver.version)},
                    {"problem", or_null(found.driver.problem)}};
  json["gpus"] = Json::array();
  for (const DeviceInfo& gpu : found.driver.gpus) {
    json["gpus"].push_back({{"name", gpu.name},
                            {"arch", gpu.arch},
                            {"multiprocessors", gpu.multiprocessors},
                            {"shared_bytes_per_block", gpu.shared_bytes_per_block},
                            {"memory_bytes", gpu.memory_bytes}});
  }
  json["host_compiler"] = {{"found", !found.host_compiler.empty()},
                           {"usable", found.host_compiler_problem.empty()},
                           {"path", or_null(found.host_compiler)},
                           {"version", or_null(found.host_compiler_version)},
                           {"problem", or_null(found.host_compiler_problem)}};
  json["disassembler"] = or_null(find_disassembler().value_or(""));
  json["disk_cache"] = {{"usable", found.cache_problem.empty()},   {"folder", or_null(found.cache.path)},
                        {"entries", found.cache_usage.entries},    {"bytes", found.cache_usage.bytes},
                        {"limit_bytes", found.cache.bytes},        {"problem", or_null(found.cache_problem)},
                        {"self_checks", found.cache_usage.checks}, {"passed_over", or_null(found.cache.passed_over)}};
  json["databases"] = {{"usable", found.database_problem.empty()},
                       {"folder", or_null(found.databases.folder)},
                       {"names", found.database_names},
                       {"shipped", shipped_databases().size()},
                       {"problem", or_null(found.database_problem)}};
  json["capture"] = {{"problem", or_null(found.capture_problem)}};
  json["settings"] = Json::array();
  for (const Setting& setting : settings()) {
    json["settings"].push_back({{"name", setting.name},
                                {"value", or_null(environment(setting.name).value_or(""))},
                                {"default", setting.fallback},
                                {"meaning", setting.meaning}});
  }
  json["can"] = {{"generate", true},
                 {"compile", found.nvrtc_problem.empty()},
                 {"run_on_gpu", found.nvrtc_problem.empty() && !found.driver.gpus.empty()},
                 {"run_on_host", found.host_compiler_problem.empty()}};
  return json;
}

std::string text_of(const Findings& found) {
  std::string text;
  const auto row = [&](std::string_view label, const std::string& value) {
    text += fmt::format("{:<14} {}\n", label, value);
  };
  if (found.nvrtc != nullptr) {
    row("NVRTC",
        fmt::format("{}, {} (found by: {})", found.nvrtc->version_text(), found.nvrtc->path(), found.nvrtc->origin()));
    row("", fmt::format("compiles for {}", fmt::join(found.nvrtc->archs(), " ")));
  } else {
    row("NVRTC", "not found");
  }
  row("driver",
      found.driver.found ? fmt::format("CUDA {}, {}", found.driver.version, found.driver.path) : "none usable");
  if (found.driver.gpus.empty()) row("GPU", "none");
  for (const DeviceInfo& gpu : found.driver.gpus) {
    constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
    row("GPU", fmt::format("{}, {}, {} multiprocessors, {:.1f} GiB, {} KiB shared memory a block", gpu.name, gpu.arch,
                           gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / kGiB,
                           gpu.shared_bytes_per_block / 1024));
  }
  row("host compiler", found.host_compiler.empty()
                           ? "not found"
                           : fmt::format("{} ({})", found.host_compiler_version, found.host_compiler));
  row("disassembler", find_disassembler().value_or("not found (only `packjit inspect --sass` needs it)"));
  row("disk cache",
      found.cache_problem.empty()
          ? fmt::format("{}: {} entries, {} remembered self-checks, {} of {} bytes", found.cache.path,
                        found.cache_usage.entries, found.cache_usage.checks, found.cache_usage.bytes, found.cache.bytes)
          : fmt::format("off, kernels are kept in memory only: {}", found.cache_problem));
  row("tuned", found.database_problem.empty()
                   ? fmt::format("{}: {} tuning databases, {} shipped; `packjit db list` shows them",
                                 found.databases.folder, found.database_names.size(), shipped_databases().size())
                   : fmt::format("no tuning databases of this user: {}", found.database_problem));
  text += "\nSettings (environment)\n";
  for (const Setting& setting : settings()) {
    text += fmt::format("  {:<22} {}\n", setting.name,
                        environment(setting.name).value_or(fmt::format("unset: {}", setting.fallback)));
    text += fmt::format("  {:<22}   {}\n", "", setting.meaning);
  }
  text += "\nWhat works here\n";
  const auto capability = [&](std::string_view what, bool works) {
    text += fmt::format("  {:<40} {}\n", what, works ? "yes" : "no");
  };
  capability("generate source", true);
  capability("compile for named architectures", found.nvrtc_problem.empty());
  capability("run on a GPU (--device cuda)", found.nvrtc_problem.empty() && !found.driver.gpus.empty());
  capability("run on the CPU (--device host)", found.host_compiler_problem.empty());
  std::vector<std::string> problems;
  for (const std::string& problem :
       {found.nvrtc_problem, found.driver.problem, found.host_compiler_problem, found.cache.passed_over,
        missing_cache(found), found.self_check_problem, missing_database(found), found.capture_problem}) {
    if (!problem.empty()) problems.push_back(problem);
  }
  if (problems.empty()) return text + "\nNothing is missing.\n";
  text += "\nWhat is missing, and what to do\n";
  for (const std::string& problem : problems) text += fmt::format("- {}\n", indented(problem));
  return text;
}

}  // namespace

void register_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Shows what was found, what is missing and what to do");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "prints JSON");
  // Reporting is the job: what is missing is no failure of this command.
  command->callback([json] {
    const Findings found = look_around();
    print_result(*json ? dump_text(json_of(found), 2) + "\n" : text_of(found));
  });
}

}  // namespace packjit
