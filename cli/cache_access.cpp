#include "cli/cache_access.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "runtime/compile_cache.hpp"
#include "runtime/errors.hpp"

namespace packjit {

std::unique_ptr<DiskCache> open_disk_cache(DiskCache::Missing missing) {
  const CacheLocation location = cache_location();
  if (!location.passed_over.empty()) throw std::invalid_argument(location.passed_over);
  std::string problem;
  auto disk = DiskCache::open(posix_file_system(), location, system_clock(), &write_log, missing, problem);
  if (!problem.empty()) throw EnvironmentError(fmt::format("there is no disk cache: {}", problem));
  return disk;
}

std::vector<CacheEntry> entries_of(const std::vector<OperatorReport>& reports,
                                   const std::shared_ptr<const Nvrtc>& nvrtc) {
  const Compiler compiler = nvrtc_compiler(nvrtc);
  std::vector<CacheEntry> entries;
  entries.reserve(reports.size());
  for (const OperatorReport& report : reports) {
    const CacheKey key = cache_key(compiler, {report.key, report.source}, report.arch);
    entries.push_back(entry_of(key, report.source, report.compiled));
  }
  return entries;
}

std::string bundle_of(std::vector<CacheEntry> entries) {
  std::vector<std::string> parts;
  parts.reserve(entries.size());
  for (CacheEntry& entry : entries) {
    entry.origin = CacheEntry::Origin::compiled;
    parts.push_back(entry_bytes(entry));
  }
  return bundle_bytes(parts);
}

void require_room(const DiskCache& disk, const std::vector<CacheEntry>& entries, std::string_view attempt) {
  std::int64_t bytes = 0;
  for (const CacheEntry& entry : entries) bytes += static_cast<std::int64_t>(entry_bytes(entry).size());
  if (bytes <= disk.limit()) return;
  throw std::invalid_argument(fmt::format(
      "cannot {}: its entries have {} bytes, the disk cache holds at most {}; set PACKJIT_CACHE_BYTES to more", attempt,
      bytes, disk.limit()));
}

void fill(DiskCache& disk, const std::vector<CacheEntry>& entries) {
  for (const CacheEntry& entry : entries) {
    // The cache's own warning has said why.
    if (!disk.publish(entry)) throw EnvironmentError(fmt::format("cannot write to the disk cache '{}'", disk.path()));
  }
}

}  // namespace packjit
