#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "database/entry.hpp"

namespace packjit {

/// The version of the format that is written. A newer minor version adds fields, a newer major version changes them.
inline constexpr int kDatabaseMajor = 1, kDatabaseMinor = 0;

/// A record that is kept in the document but never used: made for another version, impossible, or not checked.
struct UnusableRecord {
  bool failed = false;    ///< of the failed candidates; else of the entries
  nlohmann::json record;  ///< as it came
  std::string reason;
};

/// What is known of one GPU model. docs/database_format.md describes its JSON form. Plain values, kept in order: by
/// Spec, then by bucket.
struct Database {
  std::optional<GpuProperties> gpu;  ///< none where nothing was added yet
  std::vector<Entry> entries;        ///< at most one of a Spec and bucket; all can be used
  std::vector<FailedCandidate> failed;
  std::vector<UnusableRecord> unusable;
  int minor = kDatabaseMinor;                         ///< version that was read, where that is newer
  nlohmann::json unknown = nlohmann::json::object();  ///< fields of newer versions, written back as they came
  std::string origin;                                 ///< for messages; not part of the document
};

/// A document of a newer major version, which must be left as it is.
struct NewerDatabase : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Throws NewerDatabase, or std::invalid_argument for what is damaged, with the place and what was found there.
[[nodiscard]] Database parse_database(std::string_view text);

/// The same bytes for the same contents: `lines` for a file that people read and compare, `single` for one line without
/// a newline at its end.
enum class DatabaseLayout { lines, single };
[[nodiscard]] std::string write_database(const Database& database, DatabaseLayout layout = DatabaseLayout::lines);

/// Whether `a` is kept where both are of one Spec, bucket and GPU model. A total order: the later date, then the newer
/// NVRTC, then the newer driver, then the lower median, then the text of their JSON.
[[nodiscard]] bool better(const Entry& a, const Entry& b);

/// Adds a record, unless a better one of the same Spec and bucket is there. Throws std::invalid_argument, and leaves
/// the database as it was, for an entry that must not be used (why_unusable) or one of another GPU model.
void add(Database& database, Entry entry);
/// Of the same candidate, shape, versions and digest, the reason first by its text is kept.
void add(Database& database, FailedCandidate candidate);

/// Everything of both, by the rule of add(): the order of a and b and of several merges changes nothing. Throws
/// std::invalid_argument where they are of two GPU models. The origin is that of `a`.
[[nodiscard]] Database merge(Database a, Database b);

struct DatabaseDifference {
  std::vector<Entry> only_a, only_b;
  std::vector<std::pair<Entry, Entry>> changed;  ///< same Spec and bucket, another JSON text
  std::vector<FailedCandidate> failed_only_a, failed_only_b;
};
[[nodiscard]] DatabaseDifference diff(const Database& a, const Database& b);

/// What prune() removes.
struct PruneRules {
  /// Of the source that is generated now; records of another digest go. Empty: they stay.
  std::function<std::string(const Spec&, const Config&)> source_digest{};
  bool unusable = false;
  bool failed = false;  ///< all failed candidates, so that they are tried again
};
/// Removes what the rules say; a line of what and why for each record.
std::vector<std::string> prune(Database& database, const PruneRules& rules);

/// "ssm_pack_fwd dtype=bf16 ... (dim 4096, tokens 32768...)": for messages.
[[nodiscard]] std::string label_of(const Entry& entry);

}  // namespace packjit
