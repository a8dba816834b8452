#include "runtime/database_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "database/printable.hpp"
#include "runtime/digest.hpp"
#include "runtime/errors.hpp"
#include "runtime/settings.hpp"

namespace packjit {
namespace {

constexpr std::string_view kDocument = ".json", kJournal = ".journal", kOld = ".journal.old";
constexpr std::int64_t kLargest = 256LL << 20U;  // bytes; an entry has about one KiB
constexpr std::size_t kShortDigest = 8;
constexpr std::chrono::milliseconds kPoll{20}, kLongestWait{10'000};
constexpr std::chrono::milliseconds kWriting{2};  // a line takes another process less than this to write

// {"sum":"32 hexadecimal digits",...}: the digest is of what follows its comma.
constexpr std::string_view kSumBegin = "{\"sum\":\"", kSumEnd = "\",";
constexpr std::size_t kDigits = 2 * kDigestBytes;
constexpr std::size_t kSummed = kSumBegin.size() + kDigits + kSumEnd.size();
constexpr std::string_view kRecordBegin = "\"record\":", kRecordEnd = "}";

/// Leaves `into` as it was where it throws.
void take(Database& into, Database from) {
  if (into.gpu && from.gpu && !same_model(*into.gpu, *from.gpu)) {
    throw std::invalid_argument(fmt::format("it is of another GPU model ({})", printable(from.gpu->name)));
  }
  into = merge(std::move(into), std::move(from));
}

}  // namespace

DatabaseLocation database_location() {
  DatabaseLocation location;
  location.off = environment("PACKJIT_DATABASE_DIR") == "off";
  if (location.off) return location;
  const UserFolder folder = user_folder("PACKJIT_DATABASE_DIR", "XDG_DATA_HOME", ".local/share");
  location.folder = folder.path;
  if (!folder.problem.empty()) location.problem = folder.problem + ", or to off";
  return location;
}

std::string database_stem(const GpuProperties& gpu) {
  const std::string rest = fmt::format("{} {} {} {} {}", gpu.arch, gpu.multiprocessors, gpu.shared_bytes_per_block,
                                       gpu.l2_bytes, gpu.memory_clock_mhz);
  return fmt::format("{}_{}sm_{}", gpu.arch, gpu.multiprocessors, digest_hex(rest).substr(0, kShortDigest));
}

std::vector<std::string> database_stems(FileSystem& files, const std::string& folder) {
  std::unique_ptr<Folder> opened;
  std::vector<std::string> names, stems;
  std::error_code error = files.open_folder(folder, opened);
  if (error == std::errc::no_such_file_or_directory) return stems;
  if (!error) error = opened->list(names);
  if (error) {
    throw EnvironmentError(
        fmt::format("cannot read the folder of tuning databases '{}': {}; name another one in PACKJIT_DATABASE_DIR, or "
                    "set that to off",
                    folder, error.message()));
  }
  for (const std::string& name : names) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view ending = std::string_view(name).substr(dot);
    if (dot > 0 && (ending == kDocument || ending == kJournal || ending == kOld)) stems.push_back(name.substr(0, dot));
  }
  std::ranges::sort(stems);
  stems.erase(std::unique(stems.begin(), stems.end()), stems.end());
  return stems;
}

std::string journal_line(const Database& record) {
  const std::string summed =
      fmt::format("{}{}{}", kRecordBegin, write_database(record, DatabaseLayout::single), kRecordEnd);
  return fmt::format("{}{}{}{}\n", kSumBegin, digest_hex(summed), kSumEnd, summed);
}

Database parse_journal_line(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  const bool framed = line.size() > kSummed && line.starts_with(kSumBegin) &&
                      line.substr(kSummed - kSumEnd.size(), kSumEnd.size()) == kSumEnd;
  if (!framed) throw std::invalid_argument("it does not begin with a checksum");
  std::string_view summed = line.substr(kSummed);
  if (digest_hex(summed) != line.substr(kSumBegin.size(), kDigits)) {
    throw std::invalid_argument("its contents do not fit its checksum");
  }
  if (!summed.starts_with(kRecordBegin) || !summed.ends_with(kRecordEnd)) {
    throw std::invalid_argument("it holds no record");
  }
  summed.remove_prefix(kRecordBegin.size());
  summed.remove_suffix(kRecordEnd.size());
  return parse_database(summed);
}

std::string database_digest(const Database& database) {
  std::string text;
  for (const Entry& entry : database.entries) {
    text += fmt::format("{} {} {} {}\n", name_of(entry.spec.op), entry.spec.values.text(),
                        text_of(entry.bucket, entry.spec.op), entry.config.values.text());
  }
  return digest_hex(text);
}

DatabaseFile::DatabaseFile(FileSystem& files, std::string folder, std::string stem, std::optional<GpuProperties> gpu,
                           Clock clock, LogCallback log)
    : files_(files),
      folder_name_(std::move(folder)),
      stem_(std::move(stem)),
      gpu_(std::move(gpu)),
      clock_(std::move(clock)),
      log_(std::move(log)) {}

void DatabaseFile::warn(const std::string& about, const std::string& message) {
  if (!warned_.insert(about).second || !log_) return;
  log_({LogLevel::warning, message, {}});
}

void DatabaseFile::warn(const Contents& contents) {
  for (const auto& [about, message] : contents.warnings) warn(about, message);
}

DatabaseFile::Opened DatabaseFile::open(Missing missing) {
  if (folder_ != nullptr) return Opened::yes;
  FileInfo info;
  std::error_code error = files_.link_info(folder_name_, info);
  std::string_view attempt = "look at";
  if (error == std::errc::no_such_file_or_directory) {
    if (missing == Missing::leave) return Opened::none;
    attempt = "make";
    error = files_.make_folders(folder_name_);
  }
  if (!error) {
    attempt = "open";
    error = files_.open_folder(folder_name_, folder_);
  }
  if (!error) return Opened::yes;
  folder_.reset();
  warn("folder", fmt::format("cannot {} the folder of tuning databases '{}': {}. What was tuned on this machine is not "
                             "used, and nothing is written; PACKJIT_DATABASE_DIR names another folder",
                             attempt, folder_name_, error.message()));
  return Opened::failed;
}

void DatabaseFile::read_journal(const std::string& name, Contents& contents) {
  const std::string path = folder_name_ + "/" + name;
  std::string bytes;
  FileInfo info;
  const std::error_code error = folder_->read(name, kLargest, bytes, info);
  if (error == std::errc::no_such_file_or_directory) return;
  if (error) {
    contents.must_stay = true;
    contents.warnings.emplace_back("journal", fmt::format("the journal '{}' of the tuning database cannot be read: {}",
                                                          path, reason_of(error, kLargest)));
    return;
  }
  std::string_view rest = bytes;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    const bool last = end == std::string_view::npos;
    rest = last ? std::string_view{} : rest.substr(end + 1);
    if (line.empty()) continue;
    // Behind a line that was written to its end there is an empty one, see append_record().
    const bool whole = !last && (rest.empty() || rest.starts_with('\n'));
    try {
      take(contents.database, parse_journal_line(line));
    } catch (const NewerDatabase& reason) {
      contents.must_stay = true;
      contents.warnings.emplace_back("newer line",
                                     fmt::format("line {} of '{}' is not used: {}", number, path, reason.what()));
    } catch (const std::invalid_argument& reason) {
      if (!whole) {
        contents.torn = contents.torn || last;
        contents.warnings.emplace_back(
            "torn", fmt::format("line {} of the tuning journal '{}' is not whole and is dropped: whoever wrote it was "
                                "ended meanwhile, and its one record is lost",
                                number, path));
        continue;
      }
      contents.bad_lines += std::string(line) + "\n";
      contents.warnings.emplace_back(
          "line", fmt::format("line {} of the tuning journal '{}' is damaged and not used: {}. The next compaction "
                              "keeps it in '{}.damaged'",
                              number, path, reason.what(), stem_));
    }
  }
}

void DatabaseFile::read_document(Contents& contents) {
  FileInfo info;
  const std::error_code error = folder_->read(stem_ + std::string(kDocument), kLargest, contents.document, info);
  if (error == std::errc::no_such_file_or_directory) return;
  if (error) {
    contents.must_stay = true;
    contents.warnings.emplace_back(
        "document", fmt::format("the tuning database '{}' cannot be read: {}", path(), reason_of(error, kLargest)));
    return;
  }
  try {
    take(contents.database, parse_database(contents.document));
  } catch (const NewerDatabase& reason) {
    contents.must_stay = true;
    contents.warnings.emplace_back(
        "document",
        fmt::format("the tuning database '{}' is not used and is left as it is: {}", path(), reason.what()));
  } catch (const std::invalid_argument& reason) {
    contents.document_damaged = true;
    contents.warnings.emplace_back(
        "document", fmt::format("the tuning database '{}' is not used: {}. The next compaction keeps it under another "
                                "name; `packjit db check` shows what is wrong",
                                path(), reason.what()));
  }
}

DatabaseFile::Contents DatabaseFile::read(bool with_journal) {
  Contents contents = read_once(with_journal);
  if (!contents.torn) return contents;
  // Maybe another process is writing it just now.
  clock_.sleep(kWriting);
  return read_once(with_journal);
}

DatabaseFile::Contents DatabaseFile::read_once(bool with_journal) {
  Contents contents;
  if (gpu_) contents.database.gpu = gpu_;
  // In the order in which records move, against it: what is gone from one file is in the next one that is read.
  if (with_journal) read_journal(stem_ + std::string(kJournal), contents);
  read_journal(stem_ + std::string(kOld), contents);
  read_document(contents);
  if (const auto& unusable = contents.database.unusable; !unusable.empty()) {
    contents.warnings.emplace_back(
        "unusable", fmt::format("records of the tuning database '{}' that are kept but not used: {}; the first: {}. "
                                "`packjit db check` lists them",
                                path(), unusable.size(), unusable[0].reason));
  }
  return contents;
}

Database DatabaseFile::load() {
  Database nothing;
  nothing.origin = path();
  if (open(Missing::leave) != Opened::yes) return nothing;
  Contents contents = read(true);
  warn(contents);
  contents.database.origin = path();
  return std::move(contents.database);
}

bool DatabaseFile::append_record(Database record) {
  if (gpu_ && !same_model(*gpu_, *record.gpu)) {
    throw std::invalid_argument(
        fmt::format("cannot add a record of {} to the tuning database '{}': it is of another "
                    "GPU model",
                    printable(record.gpu->name), path()));
  }
  if (open(Missing::make) != Opened::yes) return false;
  // A line of its own even behind one that somebody could not finish.
  const std::error_code error = folder_->append(stem_ + std::string(kJournal), "\n" + journal_line(record));
  if (!error) return true;
  warn("append", fmt::format("a tuned entry cannot be written to '{}/{}{}': {}. It is lost when this program ends; "
                             "PACKJIT_DATABASE_DIR names another folder",
                             folder_name_, stem_, kJournal, reason_of(error)));
  return false;
}

bool DatabaseFile::append(const Entry& entry) {
  Database record;
  add(record, entry);
  return append_record(std::move(record));
}

bool DatabaseFile::append(const FailedCandidate& candidate) {
  Database record;
  add(record, candidate);
  return append_record(std::move(record));
}

bool DatabaseFile::append_all(const Database& database) {
  return std::ranges::all_of(database.entries, [&](const Entry& entry) { return append(entry); }) &&
         std::ranges::all_of(database.failed, [&](const FailedCandidate& candidate) { return append(candidate); });
}

std::unique_ptr<FileLock> DatabaseFile::lock() {
  const std::string name = stem_ + ".lock";
  std::unique_ptr<FileLock> held;
  for (std::chrono::milliseconds waited{0}; waited < kLongestWait; waited += kPoll) {
    const std::error_code error = folder_->try_lock(name, held);
    if (!error) return held;
    if (error != std::errc::resource_unavailable_try_again) break;  // locks do not work here
    clock_.sleep(kPoll);
  }
  return nullptr;
}

bool DatabaseFile::replace(Contents& contents) {
  const std::string document = stem_ + std::string(kDocument), aside = document + ".tmp";
  const std::string bytes = write_database(contents.database);
  std::error_code error;
  std::string target = document;
  if (!contents.bad_lines.empty()) {
    target = stem_ + ".damaged";
    error = folder_->append(target, contents.bad_lines);
    if (!error) target = document;
  }
  if (!error && contents.document_damaged) {
    error = folder_->rename(document, fmt::format("{}.damaged-{}{}", stem_,
                                                  digest_hex(contents.document).substr(0, kShortDigest), kDocument));
  }
  if (!error && bytes != contents.document) {
    (void)folder_->remove(aside);  // of one that was killed; the lock is held
    std::unique_ptr<NewFile> file;
    error = folder_->create(aside, file);
    if (!error) error = file->write(bytes);
    if (!error) error = file->sync();
    file.reset();
    std::string written;
    FileInfo info;
    if (!error) error = folder_->read(aside, kLargest, written, info);
    if (!error && written != bytes) error = std::make_error_code(std::errc::io_error);
    if (!error) error = folder_->rename(aside, document);
    if (error) (void)folder_->remove(aside);
  }
  if (!error) return true;
  warn("replace", fmt::format("the tuning database '{}/{}' cannot be written: {}. Its journal is kept, nothing is lost",
                              folder_name_, target, reason_of(error)));
  return false;
}

bool DatabaseFile::compact_locked(const std::function<void(Database&)>& change) {
  const std::string journal = stem_ + std::string(kJournal), old = stem_ + std::string(kOld);
  // One that was killed may have left an old journal: then the present one is a second turn.
  for (bool left_over = true; left_over;) {
    FileInfo info;
    std::error_code error = folder_->stat(old, info);
    left_over = !error;
    if (error == std::errc::no_such_file_or_directory) {
      error = folder_->rename(journal, old);
      if (error == std::errc::no_such_file_or_directory) error.clear();
    }
    if (error) {
      warn("replace", fmt::format("the journal of the tuning database '{}' cannot be moved: {}. It is kept, nothing "
                                  "is lost",
                                  path(), error.message()));
      return false;
    }
    Contents contents = read(false);
    warn(contents);
    if (contents.must_stay) return false;
    if (!left_over && change) change(contents.database);
    const bool empty = contents.document.empty() && contents.database.entries.empty() &&
                       contents.database.failed.empty() && contents.database.unusable.empty();
    if (!empty && !replace(contents)) return false;
    // From here on the document has it all; a journal that stays is merged once more, which changes nothing.
    error = folder_->remove(old);
    if (error && error != std::errc::no_such_file_or_directory) return false;
  }
  return true;
}

bool DatabaseFile::compact() { return rewrite({}); }

bool DatabaseFile::rewrite(const std::function<void(Database&)>& change) {
  const Opened opened = open(Missing::leave);
  if (opened != Opened::yes) return opened == Opened::none;
  const std::unique_ptr<FileLock> held = lock();
  if (held != nullptr) return compact_locked(change);
  warn("lock", fmt::format("the lock '{}/{}.lock' of the tuning database could not be taken; records stay in its "
                           "journal, where they are used too",
                           folder_name_, stem_));
  return false;
}

}  // namespace packjit
