#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "database/database.hpp"
#include "runtime/clock.hpp"
#include "runtime/file_system.hpp"
#include "runtime/log.hpp"

namespace packjit {

/// Where the user's tuning databases are, as the environment says.
struct DatabaseLocation {
  std::string folder;   ///< empty where there is none
  bool off = false;     ///< PACKJIT_DATABASE_DIR is "off": no database is used, shipped ones neither
  std::string problem;  ///< why there is no folder although none of it is off
};

/// PACKJIT_DATABASE_DIR, else $XDG_DATA_HOME/packjit, else $HOME/.local/share/packjit.
[[nodiscard]] DatabaseLocation database_location();

/// The name of a GPU model's files, without ending: "sm_90_132sm_1f2e3d4c".
[[nodiscard]] std::string database_stem(const GpuProperties& gpu);
/// The stems of all databases in a folder, sorted; none where there is no folder. Throws EnvironmentError where the
/// folder cannot be read.
[[nodiscard]] std::vector<std::string> database_stems(FileSystem& files, const std::string& folder);

/// One line of a journal, newline included, and back: throws std::invalid_argument where the line is damaged,
/// NewerDatabase where a newer version wrote it.
[[nodiscard]] std::string journal_line(const Database& record);
[[nodiscard]] Database parse_journal_line(std::string_view line);

/// A digest of what look-ups can find, 32 hexadecimal digits: operator, Spec, bucket and Config of every entry.
[[nodiscard]] std::string database_digest(const Database& database);

/// The database of one GPU model on the disk: a compact document STEM.json, and STEM.journal with a line for each
/// record since, so that a run that is killed loses at most the record that it was writing. Any number of processes may
/// read, append and compact at once: what append() has returned true for stays. Where locks do not work, or the
/// document is of a newer version, records stay in the journal. docs/database_format.md has the steps.
///
/// An object is used by one thread at a time. Nothing but std::bad_alloc leaves it for what is on the disk: what cannot
/// be read, written or understood is a warning, once, and the rest works.
class DatabaseFile {
 public:
  /// Touches no file. With `gpu` given, a document of another model is not used.
  DatabaseFile(FileSystem& files, std::string folder, std::string stem, std::optional<GpuProperties> gpu, Clock clock,
               LogCallback log);

  /// Everything that is there and can be used.
  [[nodiscard]] Database load();
  /// Adds a record, on the disk on return; false where it could not be written. Throws std::invalid_argument as add().
  bool append(const Entry& entry);
  bool append(const FailedCandidate& candidate);
  /// All records of `database`, one by one; false where one could not be written.
  bool append_all(const Database& database);
  /// Moves the journal into the document; false where it stays, which loses nothing.
  bool compact();
  /// Makes the document that of `change(what is there)`, under the lock, for changes that take records away.
  bool rewrite(const std::function<void(Database&)>& change);

  [[nodiscard]] std::string path() const { return folder_name_ + "/" + stem_ + ".json"; }

 private:
  /// What a reading found.
  struct Contents {
    Database database;
    std::string document;  ///< bytes of STEM.json
    bool document_damaged = false;
    bool must_stay = false;  ///< something is of a newer version, or cannot be read: nothing may be replaced
    bool torn = false;       ///< the last line of a journal is not whole
    std::string bad_lines;
    std::vector<std::pair<std::string, std::string>> warnings;  ///< what it is about, and the text
  };
  enum class Missing { leave, make };

  enum class Opened { yes, none, failed };
  Opened open(Missing missing);
  void read_journal(const std::string& name, Contents& contents);
  void read_document(Contents& contents);
  [[nodiscard]] Contents read(bool with_journal);
  [[nodiscard]] Contents read_once(bool with_journal);
  bool append_record(Database record);
  [[nodiscard]] std::unique_ptr<FileLock> lock();
  bool replace(Contents& contents);
  bool compact_locked(const std::function<void(Database&)>& change);
  void warn(const std::string& about, const std::string& message);
  void warn(const Contents& contents);

  FileSystem& files_;
  std::string folder_name_, stem_;
  std::optional<GpuProperties> gpu_;
  Clock clock_;
  LogCallback log_;
  std::unique_ptr<Folder> folder_;
  std::set<std::string> warned_;
};

}  // namespace packjit
