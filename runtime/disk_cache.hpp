#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cache_entry.hpp"
#include "runtime/cache_location.hpp"
#include "runtime/check_record.hpp"
#include "runtime/clock.hpp"
#include "runtime/file_system.hpp"
#include "runtime/log.hpp"

namespace packjit {

inline constexpr std::string_view kEntryEnding = ".entry", kCheckedEnding = ".checked";

/// Compiled kernels in a folder, one file an entry, shared by processes. docs/cache_format.md has the rules.
///
/// Safe to use from several threads and processes. Nothing here throws for what the disk or another process does: what
/// cannot be read is not there, what cannot be written is not kept, and a warning says so, once for a damaged entry and
/// once for entries that cannot be written.
class DiskCache {
 public:
  /// A file of the cache, read and checked.
  struct Stored {
    std::string file;
    std::int64_t bytes = 0;
    std::int64_t last_use = 0;        ///< seconds since 1970, to a day
    std::optional<CacheEntry> entry;  ///< none where damaged
    std::string problem;
  };
  struct Usage {
    std::int64_t entries = 0, bytes = 0;  ///< bytes of all that is kept
    std::int64_t checks = 0;              ///< passed self-checks that are remembered
  };
  /// A remembered self-check, read and checked.
  struct StoredCheck {
    std::string file;
    std::int64_t bytes = 0;
    std::int64_t last_use = 0;  ///< seconds since 1970, to a day
    std::string text;           ///< as check_text() has it; empty where damaged
    std::string problem;
  };
  enum class Missing { make, leave };

  /// Opens the folder. Null, with `problem`, where it cannot be used or is not safe: code would be loaded from a folder
  /// that others can write. Null without one where there is none yet and `missing` says to leave it so.
  [[nodiscard]] static std::unique_ptr<DiskCache> open(FileSystem& files, const CacheLocation& location, Clock clock,
                                                       LogCallback log, Missing missing, std::string& problem);

  /// The entry of exactly this key and source. Notes the use, at most once a day.
  [[nodiscard]] std::optional<CacheEntry> read(const CacheKey& key, const std::string& source);
  /// Writes an entry aside, checks it and renames it into place; then removes the others used longest ago until all
  /// fit. False where that failed; the cache is as valid as before.
  bool publish(const CacheEntry& entry);
  /// Whether this self-check was remembered. Notes the use, as read() does.
  [[nodiscard]] bool has_passed(const CheckRecord& record);
  /// Remembers it, written as entries are. False where that failed.
  bool remember(const CheckRecord& record);
  /// Makes this caller the only one that compiles `key`, among processes. Null where locks do not work, where the owner
  /// of the lock takes too long, and where the entry appears meanwhile, which `entry` then receives.
  [[nodiscard]] std::unique_ptr<FileLock> lock(const CacheKey& key, const std::string& source,
                                               std::optional<CacheEntry>& entry);

  /// Reads every entry, in the order of names.
  void for_each(const std::function<void(const Stored&)>& visit);
  /// The same for remembered self-checks.
  void for_each_check(const std::function<void(const StoredCheck&)>& visit);
  [[nodiscard]] Usage usage();
  /// Removes every file that is the cache's own, and counts those that were entries or self-checks (no bytes). Throws
  /// std::runtime_error where one stays.
  Usage clear();

  [[nodiscard]] const std::string& path() const { return location_.path; }
  [[nodiscard]] std::int64_t limit() const { return location_.bytes; }

 private:
  DiskCache(std::unique_ptr<Folder> folder, CacheLocation location, unsigned user, Clock clock, LogCallback log);
  [[nodiscard]] std::optional<CacheEntry> read_file(const std::string& name, FileInfo& info, std::string& problem);
  [[nodiscard]] bool read_check(const std::string& name, std::string& text, FileInfo& info, std::string& problem);
  void note_use(const std::string& name, const FileInfo& info);
  [[nodiscard]] bool keep(const std::string& name, const std::string& bytes);
  [[nodiscard]] std::vector<std::string> names_of(std::string_view ending);
  [[nodiscard]] std::error_code write_file(const std::string& name, const std::string& bytes);
  void keep_within_limit(const std::string& written);
  void warn_once(const std::string& subject, const std::string& message);

  std::unique_ptr<Folder> folder_;
  CacheLocation location_;
  unsigned user_;
  Clock clock_;
  LogCallback log_;
  std::mutex mutex_;  // of warned_
  std::set<std::string> warned_;
};

}  // namespace packjit
