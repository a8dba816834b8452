#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "generator/generate.hpp"
#include "runtime/cache_key.hpp"
#include "runtime/disk_cache.hpp"
#include "runtime/log.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// What turns source into images, and what identifies it in keys. Tests put one that counts in its place.
struct Compiler {
  std::string version;  ///< "13.0"
  std::string build;    ///< Nvrtc::build()
  std::function<std::vector<std::string>(const std::string& arch)> options;
  /// As compile(): source that does not compile is a value. Called from several threads at once.
  std::function<CompileResult(const std::string& source, const std::string& arch)> compile;
};

/// NVRTC with the assembler's report in the log: what the caches hold.
[[nodiscard]] Compiler nvrtc_compiler(std::shared_ptr<const Nvrtc> nvrtc);

[[nodiscard]] CacheKey cache_key(const Compiler& compiler, const Source& source, const std::string& arch);

/// A compiled kernel, or why it does not compile, and how it came.
struct CachedCompile {
  std::shared_ptr<const CompileResult> result;  ///< never null; shared, so never changed
  HitKind how = HitKind::compiled;
};

/// Compiled kernels of this process, with the disk cache behind them: a key is compiled once, among the threads of the
/// process and, where the disk cache works, among processes.
///
/// Safe to use from several threads. A thread that asks for what another is compiling waits for it; nobody waits for
/// the compile of another key. A failed compile is a value, given to those who waited for it and then forgotten: the
/// next call compiles again. So is what the compiler throws. Every call hands one event to the log.
class CompileCache {
 public:
  /// `disk` may be null.
  CompileCache(Compiler compiler, std::unique_ptr<DiskCache> disk, LogCallback log);

  /// The one of the process: NVRTC, and the folder that the environment names, opened by the first call that succeeds.
  /// Throws EnvironmentError where there is no NVRTC. A folder that cannot be used is one warning.
  [[nodiscard]] static CompileCache& shared();

  /// Compiles where neither memory nor disk has it. Touches no driver. Throws what compile() throws.
  [[nodiscard]] CachedCompile get(const Source& source, const std::string& arch);

  /// Whether this process or the disk remembers that a self-check passed.
  [[nodiscard]] bool has_passed(const CheckRecord& record);
  void remember(const CheckRecord& record);

  /// So many results are kept in memory, those asked for last: a loaded kernel no longer needs its images.
  static constexpr std::size_t kMostInMemory = 64;

 private:
  struct Known {
    std::shared_future<CachedCompile> result;
    std::uint64_t last_use = 0;
  };
  void drop_oldest();
  [[nodiscard]] CachedCompile find_or_compile(const CacheKey& key, const std::string& source);

  Compiler compiler_;
  std::unique_ptr<DiskCache> disk_;
  LogCallback log_;
  std::mutex mutex_;                    // of what follows, never held while anything is read or compiled
  std::map<std::string, Known> known_;  // by full key: compiled, or being compiled
  std::uint64_t uses_ = 0;
  std::set<std::string> passed_;  // short names of self-checks
};

}  // namespace packjit
