#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/kernel_report.hpp"
#include "runtime/disk_cache.hpp"

namespace packjit {

/// The disk cache that the environment names; null where there is none yet and `missing` says to leave it so. Throws
/// EnvironmentError where it is off or not safe to use.
[[nodiscard]] std::unique_ptr<DiskCache> open_disk_cache(DiskCache::Missing missing);

/// What the caches hold for a kernel that was compiled for a report: a device that loads it finds it.
[[nodiscard]] CacheEntry entry_of(const OperatorReport& report, const std::shared_ptr<const Nvrtc>& nvrtc);

/// Puts entries into the disk cache. Throws EnvironmentError where it is off or one cannot be written.
void fill_disk_cache(const std::vector<CacheEntry>& entries);

}  // namespace packjit
