#include "runtime/disk_cache.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/digest.hpp"
#include "runtime/temporary_paths.hpp"

namespace packjit {
namespace {

constexpr std::string_view kLockEnding = ".lock", kTemporaryEnding = ".tmp";
constexpr std::int64_t kSecond = 1'000'000'000;       // nanoseconds
constexpr std::int64_t kDay = 86'400 * kSecond;       // nanoseconds
constexpr std::int64_t kAbandoned = 3'600 * kSecond;  // after which a temporary file has no owner
constexpr std::chrono::milliseconds kLockPoll{20};
constexpr std::chrono::milliseconds kLongestCompile{120'000};  // that another process is waited for
constexpr std::int64_t kLargestEntry = 256LL << 20U;           // bytes; kernels have a few hundred KiB
constexpr std::int64_t kLargestCheck = 64LL << 10U;            // bytes; a few lines
constexpr std::size_t kShortKeyDigits = 32;

constexpr unsigned kWritableByOthers = 0022;

enum class OwnFile { no, entry, check, lock, temporary };

/// Whether the cache made a file of this name: 32 hexadecimal digits and an ending.
OwnFile kind_of(std::string_view name) {
  if (name.find_first_not_of("0123456789abcdef") != kShortKeyDigits) return OwnFile::no;
  if (name.substr(kShortKeyDigits) == kEntryEnding) return OwnFile::entry;
  if (name.substr(kShortKeyDigits) == kCheckedEnding) return OwnFile::check;
  if (name.substr(kShortKeyDigits) == kLockEnding) return OwnFile::lock;
  return name.ends_with(kTemporaryEnding) ? OwnFile::temporary : OwnFile::no;
}

/// Empty where nobody else can put files or contents there.
std::string why_unsafe(const FileInfo& info, unsigned user) {
  if (info.owner != user) {
    return fmt::format("it belongs to user {}, not to user {} who runs this, and code is loaded from it", info.owner,
                       user);
  }
  if (info.kind != FileKind::link && (info.permissions & kWritableByOthers) != 0) {
    return fmt::format("other users can write to it (permissions {:o}), and code is loaded from it; chmod go-w it",
                       info.permissions);
  }
  return {};
}

std::string entry_name(const CacheKey& key) { return short_key(key) + std::string(kEntryEnding); }
std::string check_name(const std::string& text) { return digest_hex(text) + std::string(kCheckedEnding); }

}  // namespace

DiskCache::DiskCache(std::unique_ptr<Folder> folder, CacheLocation location, unsigned user, Clock clock,
                     LogCallback log)
    : folder_(std::move(folder)),
      location_(std::move(location)),
      user_(user),
      clock_(std::move(clock)),
      log_(std::move(log)) {}

std::unique_ptr<DiskCache> DiskCache::open(FileSystem& files, const CacheLocation& location, Clock clock,
                                           LogCallback log, Missing missing, std::string& problem) {
  problem = location.problem;
  if (!problem.empty()) return nullptr;
  const auto refuse = [&](std::string_view attempt, const std::string& reason) {
    problem = fmt::format("cannot {} the folder '{}': {}", attempt, location.path, reason);
    return nullptr;
  };
  if (location.bytes == 0) return refuse("use", "PACKJIT_CACHE_BYTES is 0");
  FileInfo link;
  std::error_code error = files.link_info(location.path, link);
  if (error == std::errc::no_such_file_or_directory) {
    if (missing == Missing::leave) return nullptr;
    if ((error = files.make_folders(location.path))) return refuse("make", error.message());
    error = files.link_info(location.path, link);
  }
  if (error) return refuse("look at", error.message());
  // Who owns a link decides where it leads.
  if (const std::string reason = why_unsafe(link, files.user()); !reason.empty()) return refuse("trust", reason);
  std::unique_ptr<Folder> folder;
  if ((error = files.open_folder(location.path, folder))) return refuse("open", error.message());
  FileInfo info;
  if ((error = folder->info(info))) return refuse("look at", error.message());
  if (const std::string reason = why_unsafe(info, files.user()); !reason.empty()) return refuse("trust", reason);
  return std::unique_ptr<DiskCache>(
      new DiskCache(std::move(folder), location, files.user(), std::move(clock), std::move(log)));
}

std::optional<CacheEntry> DiskCache::read_file(const std::string& name, FileInfo& info, std::string& problem) {
  std::string bytes;
  if (const std::error_code error = folder_->read(name, kLargestEntry, bytes, info)) {
    // Missing is what most look-ups find.
    if (error != std::errc::no_such_file_or_directory) problem = reason_of(error, kLargestEntry);
    return std::nullopt;
  }
  problem = why_unsafe(info, user_);
  if (!problem.empty()) return std::nullopt;
  return parse_entry(bytes, problem);
}

std::optional<CacheEntry> DiskCache::read(const CacheKey& key, const std::string& source) {
  const std::string name = entry_name(key);
  FileInfo info;
  std::string problem;
  std::optional<CacheEntry> entry = read_file(name, info, problem);
  if (entry && (entry->key != key || entry->source != source)) {
    problem = "it holds another kernel than its name says";
    entry.reset();
  }
  if (!problem.empty()) {
    warn_once(name, fmt::format("the compile cache's entry '{}/{}' is not used: {}. The kernel is compiled anew",
                                location_.path, name, problem));
  }
  if (entry) note_use(name, info);
  return entry;
}

void DiskCache::note_use(const std::string& name, const FileInfo& info) {
  const std::int64_t now = clock_.now();
  // A stamp from the future is one of a clock that was wrong. That it cannot be set is no harm.
  if (now - info.last_use >= kDay || info.last_use > now) (void)folder_->set_last_use(name, now);
}

bool DiskCache::read_check(const std::string& name, std::string& text, FileInfo& info, std::string& problem) {
  if (const std::error_code error = folder_->read(name, kLargestCheck, text, info)) {
    if (error != std::errc::no_such_file_or_directory) problem = reason_of(error, kLargestCheck);
    return false;
  }
  problem = why_unsafe(info, user_);
  if (problem.empty() && check_name(text) != name) problem = "its contents do not have the digest in its name";
  return problem.empty();
}

bool DiskCache::has_passed(const CheckRecord& record) {
  const std::string wanted = check_text(record), name = check_name(wanted);
  std::string text, problem;
  FileInfo info;
  if (read_check(name, text, info, problem) && text == wanted) {
    note_use(name, info);
    return true;
  }
  if (!problem.empty()) {
    warn_once(name, fmt::format("the remembered self-check '{}/{}' is not used: {}. The kernel is checked again",
                                location_.path, name, problem));
  }
  return false;
}

bool DiskCache::remember(const CheckRecord& record) {
  const std::string text = check_text(record);
  return keep(check_name(text), text);
}

std::error_code DiskCache::write_file(const std::string& name, const std::string& bytes) {
  static std::atomic<unsigned> count = 0;
  constexpr int kMostTries = 100;
  std::unique_ptr<NewFile> file;
  std::string temporary;
  std::error_code error;
  // Another machine or container that shares the folder may have this process number too.
  for (int i = 0; i < kMostTries && file == nullptr; ++i) {
    temporary = fmt::format("{}.{}-{}{}", name.substr(0, kShortKeyDigits), getpid(), count++, kTemporaryEnding);
    error = folder_->create(temporary, file);
    if (error && error != std::errc::file_exists) return error;
  }
  if (file == nullptr) return error;
  const TemporaryPath kept(location_.path + "/" + temporary);
  error = file->write(bytes);
  if (!error) error = file->sync();
  file.reset();
  if (!error) {
    std::string written;
    FileInfo info;
    error = folder_->read(temporary, kLargestEntry, written, info);
    if (!error && written != bytes) error = std::make_error_code(std::errc::io_error);
  }
  // Where a stamp cannot be set, the file system's own is as good.
  (void)folder_->set_last_use(temporary, clock_.now());
  if (!error) error = folder_->rename(temporary, name);
  if (error) (void)folder_->remove(temporary);
  return error;
}

bool DiskCache::publish(const CacheEntry& entry) { return keep(entry_name(entry.key), entry_bytes(entry)); }

bool DiskCache::keep(const std::string& name, const std::string& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::string reason;
  if (size > kLargestEntry) {
    reason = fmt::format("the largest file that it keeps has {} bytes", kLargestEntry);
  } else if (size > location_.bytes) {
    reason =
        fmt::format("PACKJIT_CACHE_BYTES, which limits all its files together, is {}; set it to more", location_.bytes);
  } else if (const std::error_code error = write_file(name, bytes)) {
    reason = reason_of(error);
  }
  if (!reason.empty()) {
    warn_once("writing", fmt::format("the compile cache cannot keep a file of {} bytes in '{}': {}. Kernels are kept "
                                     "in memory only; `packjit doctor` shows the cache",
                                     size, location_.path, reason));
    return false;
  }
  keep_within_limit(name);
  return true;
}

void DiskCache::keep_within_limit(const std::string& written) {
  struct File {
    std::int64_t last_use, bytes;
    std::string name;
  };
  std::vector<std::string> names;
  if (folder_->list(names)) return;
  std::vector<File> entries;
  std::int64_t total = 0;
  for (const std::string& name : names) {
    const OwnFile kind = kind_of(name);
    FileInfo info;
    if (kind == OwnFile::no || kind == OwnFile::lock || folder_->stat(name, info)) continue;
    if (kind == OwnFile::temporary) {
      if (clock_.now() - info.last_use > kAbandoned) (void)folder_->remove(name);
      continue;
    }
    total += info.bytes;
    // Not even where another file has a stamp from the future.
    if (name != written) entries.push_back({info.last_use, info.bytes, name});
  }
  std::sort(entries.begin(), entries.end(), [](const File& a, const File& b) {
    return std::pair(a.last_use, std::string_view(a.name)) < std::pair(b.last_use, std::string_view(b.name));
  });
  for (const File& file : entries) {
    if (total <= location_.bytes) return;
    // One that another process removed meanwhile has made room as well.
    (void)folder_->remove(file.name);
    total -= file.bytes;
  }
}

std::unique_ptr<FileLock> DiskCache::lock(const CacheKey& key, const std::string& source,
                                          std::optional<CacheEntry>& entry) {
  const std::string name = short_key(key) + std::string(kLockEnding);
  std::unique_ptr<FileLock> held;
  for (std::chrono::milliseconds waited{0}; waited < kLongestCompile; waited += kLockPoll) {
    const std::error_code error = folder_->try_lock(name, held);
    if (error && error != std::errc::resource_unavailable_try_again) return nullptr;
    // Its last owner published before it let go.
    entry = read(key, source);
    if (entry) return nullptr;
    if (!error) return held;
    clock_.sleep(kLockPoll);
  }
  warn_once(name, fmt::format(
                      "another process has been compiling a kernel for more than {} s (its lock is '{}/{}'); it "
                      "is not waited for any longer",
                      std::chrono::duration_cast<std::chrono::seconds>(kLongestCompile).count(), location_.path, name));
  return nullptr;
}

std::vector<std::string> DiskCache::names_of(std::string_view ending) {
  std::vector<std::string> names;
  if (const std::error_code error = folder_->list(names)) {
    throw std::runtime_error(fmt::format("cannot list the compile cache '{}': {}", location_.path, error.message()));
  }
  std::erase_if(names, [&](const std::string& name) {
    return kind_of(name) == OwnFile::no || std::string_view(name).substr(kShortKeyDigits) != ending;
  });
  std::sort(names.begin(), names.end());
  return names;
}

void DiskCache::for_each_check(const std::function<void(const StoredCheck&)>& visit) {
  for (const std::string& name : names_of(kCheckedEnding)) {
    StoredCheck stored;
    stored.file = name;
    FileInfo info;
    if (!read_check(name, stored.text, info, stored.problem)) {
      if (stored.problem.empty()) continue;  // removed meanwhile
      stored.text.clear();
    }
    stored.bytes = info.bytes;
    stored.last_use = info.last_use / kSecond;
    visit(stored);
  }
}

void DiskCache::for_each(const std::function<void(const Stored&)>& visit) {
  for (const std::string& name : names_of(kEntryEnding)) {
    Stored stored;
    stored.file = name;
    FileInfo info;
    stored.entry = read_file(name, info, stored.problem);
    if (!stored.entry && stored.problem.empty()) continue;  // removed meanwhile
    if (stored.entry && entry_name(stored.entry->key) != name) {
      stored.problem = "it holds another kernel than its name says";
      stored.entry.reset();
    }
    stored.bytes = info.bytes;
    stored.last_use = info.last_use / kSecond;
    visit(stored);
  }
}

DiskCache::Usage DiskCache::usage() {
  Usage usage;
  std::vector<std::string> names;
  if (folder_->list(names)) return usage;
  for (const std::string& name : names) {
    FileInfo info;
    const OwnFile kind = kind_of(name);
    if ((kind != OwnFile::entry && kind != OwnFile::check) || folder_->stat(name, info)) continue;
    ++(kind == OwnFile::entry ? usage.entries : usage.checks);
    usage.bytes += info.bytes;
  }
  return usage;
}

DiskCache::Usage DiskCache::clear() {
  std::vector<std::string> names;
  std::error_code error = folder_->list(names);
  Usage removed;
  for (const std::string& name : names) {
    const OwnFile kind = kind_of(name);
    if (kind == OwnFile::no) continue;
    const std::error_code failed = folder_->remove(name);
    if (failed == std::errc::is_a_directory) continue;  // none that the cache made
    if (failed && failed != std::errc::no_such_file_or_directory) error = failed;
    if (!failed && kind == OwnFile::entry) ++removed.entries;
    if (!failed && kind == OwnFile::check) ++removed.checks;
  }
  if (error) {
    throw std::runtime_error(fmt::format("cannot clear the compile cache '{}': {}", location_.path, error.message()));
  }
  return removed;
}

void DiskCache::warn_once(const std::string& subject, const std::string& message) {
  {
    const std::lock_guard guard(mutex_);
    if (!warned_.insert(subject).second) return;
  }
  if (log_) log_({LogLevel::warning, message, {}});
}

}  // namespace packjit
