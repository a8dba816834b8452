#include "runtime/compile_cache.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "runtime/digest.hpp"

namespace packjit {
namespace {

constexpr CompileSettings kSettings{.verbose = true};

CachedCompile from_entry(CacheEntry entry) {
  const HitKind how = entry.origin == CacheEntry::Origin::imported ? HitKind::imported : HitKind::disk;
  return {std::make_shared<const CompileResult>(result_of(std::move(entry))), how};
}

std::unique_ptr<DiskCache> open_disk_cache() {
  const CacheLocation location = cache_location();
  if (!location.passed_over.empty()) {
    write_log({LogLevel::warning, fmt::format("{}; the default holds", location.passed_over), {}});
  }
  if (location.problem.empty() && location.bytes == 0) return nullptr;  // turned off, which needs no warning
  std::string problem;
  auto disk =
      DiskCache::open(posix_file_system(), location, system_clock(), &write_log, DiskCache::Missing::make, problem);
  if (disk == nullptr) {
    write_log({LogLevel::warning,
               fmt::format("compiled kernels are kept in memory only: {}. `packjit doctor` shows the cache", problem),
               {}});
  }
  return disk;
}

}  // namespace

Compiler nvrtc_compiler(std::shared_ptr<const Nvrtc> nvrtc) {
  Compiler compiler;
  compiler.version = nvrtc->version_text();
  compiler.build = nvrtc->build();
  compiler.options = [](const std::string& arch) { return compile_options(arch, kSettings); };
  compiler.compile = [nvrtc = std::move(nvrtc)](const std::string& source, const std::string& arch) {
    return packjit::compile(*nvrtc, source, arch, kSettings);
  };
  return compiler;
}

CacheKey cache_key(const Compiler& compiler, const Source& source, const std::string& arch) {
  return {source.key, digest_hex(source.text), arch, compiler.version, compiler.build, compiler.options(arch)};
}

CompileCache::CompileCache(Compiler compiler, std::unique_ptr<DiskCache> disk, LogCallback log)
    : compiler_(std::move(compiler)), disk_(std::move(disk)), log_(std::move(log)) {}

CompileCache& CompileCache::shared() {
  static std::mutex mutex;
  static CompileCache* cache = nullptr;  // never destroyed: threads may use it while the process ends
  const std::lock_guard lock(mutex);
  if (cache == nullptr) {
    Compiler compiler = nvrtc_compiler(Nvrtc::shared());
    cache = new CompileCache(std::move(compiler), open_disk_cache(), &write_log);
  }
  return *cache;
}

CachedCompile CompileCache::get(const Source& source, const std::string& arch) {
  const auto start = std::chrono::steady_clock::now();
  const CacheKey key = cache_key(compiler_, source, arch);
  const std::string name = full_key(key);
  std::promise<CachedCompile> promise;
  std::shared_future<CachedCompile> known;
  {
    const std::lock_guard lock(mutex_);
    const auto [it, is_new] = known_.try_emplace(name);
    if (is_new) {
      it->second.result = promise.get_future().share();
    } else {
      known = it->second.result;
    }
    it->second.last_use = ++uses_;
  }
  const auto forget = [&] {
    const std::lock_guard lock(mutex_);
    known_.erase(name);
  };
  CachedCompile found;
  if (known.valid()) {
    found = {known.get().result, HitKind::memory};
  } else {
    try {
      found = find_or_compile(key, source.text);
    } catch (...) {
      forget();
      promise.set_exception(std::current_exception());
      throw;
    }
    if (!found.result->ok) forget();
    promise.set_value(found);
    const std::lock_guard lock(mutex_);
    drop_oldest();
  }
  if (log_) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log_({LogLevel::event, fmt::format("{} for {}: {}", source.key, arch, name_of(found.how)),
          KernelEvent{name, found.how, seconds}});
  }
  return found;
}

// What is still being compiled stays: threads that ask for it have to find it.
void CompileCache::drop_oldest() {
  while (known_.size() > kMostInMemory) {
    auto oldest = known_.end();
    for (auto it = known_.begin(); it != known_.end(); ++it) {
      const bool done = it->second.result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      if (done && (oldest == known_.end() || it->second.last_use < oldest->second.last_use)) oldest = it;
    }
    if (oldest == known_.end()) return;
    known_.erase(oldest);
  }
}

bool CompileCache::has_passed(const CheckRecord& record) {
  const std::string name = short_name(record);
  {
    const std::lock_guard lock(mutex_);
    if (passed_.contains(name)) return true;
  }
  if (disk_ == nullptr || !disk_->has_passed(record)) return false;
  const std::lock_guard lock(mutex_);
  passed_.insert(name);
  return true;
}

void CompileCache::remember(const CheckRecord& record) {
  if (disk_ != nullptr) (void)disk_->remember(record);
  const std::lock_guard lock(mutex_);
  passed_.insert(short_name(record));
}

CachedCompile CompileCache::find_or_compile(const CacheKey& key, const std::string& source) {
  std::unique_ptr<FileLock> lock;
  if (disk_ != nullptr) {
    std::optional<CacheEntry> entry = disk_->read(key, source);
    if (!entry) lock = disk_->lock(key, source, entry);
    if (entry) return from_entry(std::move(*entry));
  }
  auto result = std::make_shared<const CompileResult>(compiler_.compile(source, key.arch));
  if (result->ok && disk_ != nullptr) disk_->publish(entry_of(key, source, *result));
  return {std::move(result), HitKind::compiled};
}

}  // namespace packjit
