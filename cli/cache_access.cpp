#include "cli/cache_access.hpp"

#include <fmt/format.h>

#include "runtime/compile_cache.hpp"
#include "runtime/errors.hpp"

namespace packjit {

std::unique_ptr<DiskCache> open_disk_cache(DiskCache::Missing missing) {
  std::string problem;
  auto disk = DiskCache::open(posix_file_system(), cache_location(), system_clock(), &write_log, missing, problem);
  if (!problem.empty()) throw EnvironmentError(fmt::format("there is no disk cache: {}", problem));
  return disk;
}

CacheEntry entry_of(const OperatorReport& report, const std::shared_ptr<const Nvrtc>& nvrtc) {
  const CacheKey key = cache_key(nvrtc_compiler(nvrtc), {report.key, report.source}, report.arch);
  return entry_of(key, report.source, report.compiled);
}

void fill_disk_cache(const std::vector<CacheEntry>& entries) {
  const auto disk = open_disk_cache(DiskCache::Missing::make);
  for (const CacheEntry& entry : entries) {
    // The cache's own warning has said why.
    if (!disk->publish(entry)) throw EnvironmentError(fmt::format("cannot write to the disk cache '{}'", disk->path()));
  }
}

}  // namespace packjit
