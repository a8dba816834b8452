// packjit bench host: what the library costs the host. Compiling, the first launches of a process, a warm call, size.
#include "cli/bench_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench_report.hpp"
#include "cli/date.hpp"
#include "cli/host_step.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/builtin_config.hpp"
#include "database/record_json.hpp"
#include "runtime/compile_cache.hpp"
#include "runtime/cuda_context.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/cuda_module.hpp"
#include "runtime/errors.hpp"
#include "runtime/host/child_process.hpp"
#include "runtime/image_choice.hpp"
#include "runtime/settings.hpp"

namespace packjit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

const std::vector<std::string> kParts = {"compile", "launch", "call", "size"};
constexpr const char* kFirstLaunch = "host-first-launch";  // what the program runs as its own child

struct Options {
  std::vector<std::string> only;
  std::string arch;
  int repeats = 10;
  std::int64_t calls = 20'000;
  bool json = false;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Of a list that is not empty.
Json spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"median", values[values.size() / 2]}, {"least", values.front()}, {"most", values.back()}};
}

/// An empty folder for a cache, removed with all that is in it.
class CacheFolder {
 public:
  CacheFolder() : path_((fs::temp_directory_path() / "packjit-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw EnvironmentError(fmt::format("cannot make a folder like '{}'", path_));
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
  ~CacheFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Source default_source(Operator op, const std::string& arch) {
  const Spec spec(op);
  return generate(spec, builtin_config(spec, arch), Target::cuda);
}

/// A process's cache before its first compile.
std::unique_ptr<CompileCache> cold_cache(const std::shared_ptr<const Nvrtc>& nvrtc, const std::string& folder) {
  std::string problem;
  auto disk = DiskCache::open(posix_file_system(), {folder, kDefaultCacheBytes, ""}, system_clock(), &write_log,
                              DiskCache::Missing::make, problem);
  if (disk == nullptr) throw EnvironmentError(problem);
  Compiler compiler = nvrtc_compiler(nvrtc);
  compiler.compile = [nvrtc](const std::string& source, const std::string& arch) {
    constexpr int kFirstWithCache = 13;
    return compile(*nvrtc, source, arch, {.verbose = true, .anew = nvrtc->version().major >= kFirstWithCache});
  };
  return std::make_unique<CompileCache>(std::move(compiler), std::move(disk), LogCallback());
}

void compile_one(CompileCache& cache, Operator op, const std::string& arch) {
  const CachedCompile found = cache.get(default_source(op, arch), arch);
  if (!found.result->ok) throw std::logic_error(describe_failure(*found.result));
  if (found.how != HitKind::compiled) throw std::logic_error("a cold cache was not cold");
}

Json bench_compile(const std::string& arch) {
  constexpr int kRepeats = 3;
  const auto nvrtc = Nvrtc::shared();
  Json result = {{"arch", arch}, {"repeats", kRepeats}, {"operators", Json::array()}};
  Progress progress("compiling", 5);
  for (const Operator op : kOperators) {
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      const CacheFolder folder;
      const auto cache = cold_cache(nvrtc, folder.path());
      const auto start = Clock::now();
      compile_one(*cache, op, arch);
      seconds.push_back(seconds_since(start));
    }
    result["operators"].push_back({{"operator", name_of(op)}, {"seconds", spread_of(std::move(seconds))}});
    progress.advance();
  }
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const CacheFolder folder;
    const auto cache = cold_cache(nvrtc, folder.path());
    std::vector<std::exception_ptr> failures(std::size(kOperators));
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < std::size(kOperators); ++t) {
      threads.emplace_back([&, t] {
        try {
          compile_one(*cache, kOperators[t], arch);
        } catch (...) {
          failures[t] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    seconds.push_back(seconds_since(start));
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }
  result["four_in_parallel_seconds"] = spread_of(std::move(seconds));
  result["processors"] = std::thread::hardware_concurrency();
  return result;
}

/// The primary context of GPU 0, current on this thread.
class Primary {
 public:
  explicit Primary(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.context_retain(&context_, gpu_numbered(driver_, 0)), "retain the primary context");
    driver_.check(driver_.context_push(context_), "enter the context");
  }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  ~Primary() {
    CUcontext popped = nullptr;
    driver_.context_pop(&popped);
    driver_.context_release(0);
  }

 private:
  const Driver& driver_;
  CUcontext context_ = nullptr;
};

/// The child: one line of JSON. `started` is when its parent started it.
void first_launch(std::int64_t started) {
  const std::int64_t entered = now_ns();
  const Driver& driver = Driver::get();
  const Primary primary(driver);
  HostStep step(driver);
  step.wait();
  const std::int64_t ready = now_ns();
  packjit_device* device = open_gpu();
  step.use(device);
  const std::int64_t made = now_ns();
  Json kernels = Json::object();
  for (const Operator op : kOperators) {
    const std::int64_t start = now_ns();
    step.run(op);
    kernels[std::string(name_of(op))] = static_cast<double>(now_ns() - start) / 1e6;
  }
  const std::int64_t launched = now_ns();
  step.wait();
  const std::int64_t ended = now_ns();
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  print_result(Json{{"start_ms", ms(entered - started)},
                    {"context_ms", ms(ready - entered)},
                    {"device_and_map_ms", ms(made - ready)},
                    {"kernels_ms", kernels},
                    {"launched_ms", ms(launched - ready + entered - started)},
                    {"ended_ms", ms(ended - ready + entered - started)}}
                   .dump() +
               "\n");
  // The step still has operators and memory of the device: the process ends with them.
  flush_results();
  std::_Exit(0);
}

Json run_child() {
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const host::ChildResult child =
      host::run_program({program, "bench", kFirstLaunch, "--started", std::to_string(now_ns())});
  const std::size_t at = child.output.rfind("{\"start_ms\"");
  Json run = Json::parse(child.output.substr(std::min(at, child.output.size())), nullptr, false);
  if (child.status != 0 || run.is_discarded()) {
    throw std::runtime_error(
        fmt::format("the program's own child ended with exit status {}: {}", child.status, child.output));
  }
  return run;
}

Json bench_launch(int repeats) {
  const CacheFolder folder;
  const std::optional<std::string> before = environment("PACKJIT_CACHE_DIR");
  setenv("PACKJIT_CACHE_DIR", folder.path().c_str(), 1);
  const Json cold = run_child();  // compiles, checks, fills the cache
  Json runs = Json::array();
  std::vector<double> launched, ended;
  for (int i = 0; i < repeats; ++i) {
    runs.push_back(run_child());
    launched.push_back(runs.back()["launched_ms"]);
    ended.push_back(runs.back()["ended_ms"]);
  }
  before ? setenv("PACKJIT_CACHE_DIR", before->c_str(), 1) : unsetenv("PACKJIT_CACHE_DIR");
  return {{"repeats", repeats},
          {"launched_ms", spread_of(std::move(launched))},
          {"ended_ms", spread_of(std::move(ended))},
          {"cold_cache_launched_ms", cold["launched_ms"]},
          {"runs", runs}};
}

Json bench_call(std::int64_t calls) {
  const Driver& driver = Driver::get();
  const Primary primary(driver);
  const DeviceInfo gpu = describe_gpu(driver, gpu_numbered(driver, 0));
  const auto nvrtc = Nvrtc::shared();
  const CompileResult images =
      compile(*nvrtc, empty_kernels(), arch_for_gpu(gpu.arch, nvrtc->archs(), nvrtc->version_text()));
  if (!images.ok) throw std::logic_error(describe_failure(images));
  CUmodule empty = load_images(driver, gpu, images);
  const auto open = [&](const Driver& with) { return &with == &driver ? open_gpu() : open_gpu_over(with); };
  const std::vector<CallCost> costs = call_costs(driver, empty, open, calls);
  driver.module_unload(empty);
  Json result = Json::array();
  for (const CallCost& cost : costs) {
    result.push_back({{"operator", name_of(cost.op)},
                      {"calls", cost.calls},
                      {"kernels_per_call", cost.kernels},
                      {"call_ns", cost.call_ns},
                      {"bare_launch_ns", cost.launch_ns},
                      {"above_bare_ns_per_kernel", cost.above_ns()}});
  }
  return result;
}

/// Where the build and an installed tree have the library.
Json library_size() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::vector<fs::path> candidates = {folder / "libpackjit.so", folder.parent_path() / "api" / "libpackjit.so"};
  for (const char* name : {"lib", "lib64"}) candidates.push_back(folder.parent_path() / name / "libpackjit.so");
  std::error_code ignored;
  const fs::path lib = folder.parent_path() / "lib";
  for (const auto& inside : fs::directory_iterator(lib, ignored)) candidates.push_back(inside.path() / "libpackjit.so");
  for (const fs::path& path : candidates) {
    const fs::path file = fs::canonical(path, ignored);
    if (ignored) continue;
    return {{"file", file.filename().string()}, {"bytes", fs::file_size(file)}};
  }
  throw EnvironmentError("libpackjit.so is neither beside the program nor in the lib folder of its tree");
}

std::string text_of(const Json& report) {
  std::string text = fmt::format("{}, {}, NVRTC {}, driver for CUDA {}\n", report["date"].get<std::string>(),
                                 report["gpu"].is_null() ? "no GPU" : report["gpu"].get<std::string>(),
                                 report["nvrtc"].is_null() ? "none" : report["nvrtc"].get<std::string>(),
                                 report["driver"].is_null() ? "none" : report["driver"].get<std::string>());
  const auto number = [](const Json& value) { return value.get<double>(); };
  if (report.contains("compile")) {
    const Json& compile = report["compile"];
    text += fmt::format("\n{:<26} {:>9} {:>9} {:>9}\n", "cold compile, " + compile["arch"].get<std::string>(),
                        "median s", "least", "most");
    const auto row = [&](const std::string& name, const Json& s) {
      text += fmt::format("{:<26} {:>9.3f} {:>9.3f} {:>9.3f}\n", name, number(s["median"]), number(s["least"]),
                          number(s["most"]));
    };
    for (const Json& one : compile["operators"]) row(one["operator"].get<std::string>(), one["seconds"]);
    row(fmt::format("all four, {} processors", compile["processors"].get<int>()), compile["four_in_parallel_seconds"]);
  }
  if (report.contains("launch")) {
    const Json& launch = report["launch"];
    text += fmt::format("\n{:<26} {:>9} {:>9} {:>9}\n", "process start, warm disk", "median ms", "least", "most");
    for (const auto& [name, label] : {std::pair{"launched_ms", "four kernels launched"}, {"ended_ms", "and ended"}}) {
      text += fmt::format("{:<26} {:>9.2f} {:>9.2f} {:>9.2f}\n", label, number(launch[name]["median"]),
                          number(launch[name]["least"]), number(launch[name]["most"]));
    }
    text += "(without making the CUDA context)\n";
  }
  if (report.contains("call")) {
    text += fmt::format("\n{:<26} {:>9} {:>9} {:>12} {:>14}\n", "warm call", "kernels", "call ns", "bare launch",
                        "above, ns each");
    for (const Json& one : report["call"]) {
      text += fmt::format("{:<26} {:>9} {:>9.0f} {:>12.0f} {:>14.0f}\n", one["operator"].get<std::string>(),
                          one["kernels_per_call"].get<int>(), number(one["call_ns"]), number(one["bare_launch_ns"]),
                          number(one["above_bare_ns_per_kernel"]));
    }
  }
  if (report.contains("size")) {
    text += fmt::format("\n{}: {} bytes\n", report["size"]["file"].get<std::string>(),
                        report["size"]["bytes"].get<std::int64_t>());
  }
  for (const auto& [part, reason] : report["missing"].items()) {
    text += fmt::format("\nnot measured: {}: {}\n", part, reason.get<std::string>());
  }
  return text;
}

void bench_host(const Options& options, const std::string& command) {
  if (options.repeats < 1 || options.calls < 1) {
    throw std::invalid_argument(
        fmt::format("bench host: --repeats {} and --calls {} must both be at least 1", options.repeats, options.calls));
  }
  const DriverSurvey survey = survey_driver();
  Json report = {{"date", today()}, {"command", command}, {"gpu", nullptr}, {"driver", nullptr}, {"nvrtc", nullptr}};
  if (!survey.gpus.empty()) report["gpu"] = survey.gpus.front().name;
  if (survey.found) report["driver"] = survey.version;
  try {
    report["nvrtc"] = Nvrtc::shared()->version_text();
  } catch (const EnvironmentError&) {
    report["nvrtc"] = nullptr;  // the parts that need it say so
  }
  report["missing"] = Json::object();
  const std::string arch = !options.arch.empty()  ? options.arch
                           : !survey.gpus.empty() ? survey.gpus.front().arch
                                                  : "sm_90";
  const auto measure = [&](const std::string& part, const std::function<Json()>& work) {
    const bool named = std::ranges::find(options.only, part) != options.only.end();
    if (!options.only.empty() && !named) return;
    try {
      report[part] = work();
    } catch (const EnvironmentError& error) {
      if (named) throw;
      report["missing"][part] = error.what();
    }
  };
  const auto need_gpu = [&] {
    if (survey.gpus.empty()) throw EnvironmentError(survey.problem);
  };
  measure("compile", [&] { return bench_compile(arch); });
  measure("launch", [&] {
    need_gpu();
    return bench_launch(options.repeats);
  });
  measure("call", [&] {
    need_gpu();
    return bench_call(options.calls);
  });
  measure("size", library_size);
  print_result(options.json ? dump_text(report, 2) + "\n" : text_of(report));
}

}  // namespace

void add_bench_host(CLI::App& bench) {
  CLI::App* host =
      bench.add_subcommand("host", "what the library costs the host: compiling, starting, a call, its size");
  const auto options = std::make_shared<Options>();
  host->add_option("--only", options->only, "parts to measure: compile, launch, call, size (all)")
      ->check(CLI::IsMember(kParts));
  host->add_option("--arch", options->arch, "what is compiled for (the GPU's, sm_90 without one)")->type_name("ARCH");
  host->add_option("--repeats", options->repeats, "processes that are started")->capture_default_str();
  host->add_option("--calls", options->calls, "calls of each operator")->capture_default_str();
  host->add_flag("--json", options->json, "print JSON (docs/bench_host.md)");
  host->callback([options, host] { bench_host(*options, "packjit bench host" + given_options(*host, {})); });

  CLI::App* child = bench.add_subcommand(kFirstLaunch, "")->group("");  // not for people, so not in the help
  const auto started = std::make_shared<std::int64_t>(0);
  child->add_option("--started", *started)->required();
  child->callback([started] { first_launch(*started); });
}

}  // namespace packjit
