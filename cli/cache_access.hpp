#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/kernel_report.hpp"
#include "runtime/disk_cache.hpp"

namespace packjit {

/// The disk cache that the environment names; null where there is none yet and `missing` says to leave it so. Throws
/// EnvironmentError where it is off or not safe to use, std::invalid_argument where its settings mean nothing.
[[nodiscard]] std::unique_ptr<DiskCache> open_disk_cache(DiskCache::Missing missing);

/// What the caches hold for kernels that were compiled for reports: a device that loads one finds it.
[[nodiscard]] std::vector<CacheEntry> entries_of(const std::vector<OperatorReport>& reports,
                                                 const std::shared_ptr<const Nvrtc>& nvrtc);
/// The bytes of a bundle of these entries, none of them marked as imported.
[[nodiscard]] std::string bundle_of(std::vector<CacheEntry> entries);

/// Throws std::invalid_argument where the entries do not fit into the disk cache together: the last would drive the
/// first out.
void require_room(const DiskCache& disk, const std::vector<CacheEntry>& entries, std::string_view attempt);
/// Puts entries into the disk cache. Throws EnvironmentError where one cannot be written.
void fill(DiskCache& disk, const std::vector<CacheEntry>& entries);

}  // namespace packjit
