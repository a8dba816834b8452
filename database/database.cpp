#include "database/database.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <set>
#include <span>
#include <tuple>

#include "database/json_object.hpp"
#include "database/printable.hpp"
#include "database/record_json.hpp"

namespace packjit {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kFormat = "packjit tuning database";
constexpr int kDeepest = 32;  // objects and arrays inside each other

/// Numbers inside the text compare as numbers: "12.10" is newer than "12.9".
std::vector<std::pair<std::size_t, std::string_view>> numbers_in(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789";
  std::vector<std::pair<std::size_t, std::string_view>> numbers;
  for (std::size_t begin = text.find_first_of(kDigits); begin < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
    begin = std::min(text.find_first_not_of('0', begin), end);
    numbers.emplace_back(end - begin, text.substr(begin, end - begin));
    begin = text.find_first_of(kDigits, end);
  }
  return numbers;
}

std::strong_ordering compare_versions(std::string_view a, std::string_view b) {
  const auto in_a = numbers_in(a), in_b = numbers_in(b);
  if (in_a != in_b) return in_a < in_b ? std::strong_ordering::less : std::strong_ordering::greater;
  return a <=> b;
}

bool same_place(const Entry& a, const Entry& b) { return a.bucket == b.bucket && a.spec == b.spec; }
bool same_place(const FailedCandidate& a, const FailedCandidate& b) {
  return a.config == b.config && a.spec == b.spec && a.measured == b.measured && a.nvrtc == b.nvrtc &&
         a.driver == b.driver && a.source_digest == b.source_digest;
}
bool better(const FailedCandidate& a, const FailedCandidate& b) {
  return dump_text(json_of(a)) < dump_text(json_of(b));
}

auto order_of(const Entry& entry) { return std::tuple(entry.spec.op, entry.spec.values.text(), entry.bucket); }
auto order_of(const FailedCandidate& candidate) {
  const Workload& work = candidate.measured;
  return std::tuple(candidate.spec.op, candidate.spec.values.text(), candidate.config.values.text(), work.dim,
                    work.tokens, work.sequences, work.longest, candidate.nvrtc, candidate.driver,
                    candidate.source_digest);
}

template <typename Record>
void put(std::vector<Record>& records, Record record) {
  const auto same = std::ranges::find_if(records, [&](const Record& other) { return same_place(record, other); });
  if (same == records.end()) {
    // Documents are in order, so most records come last.
    const auto order = order_of(record);
    const bool last = records.empty() || !(order < order_of(records.back()));
    const auto after = last ? records.end()
                            : std::ranges::upper_bound(records, order, {}, [](const Record& r) { return order_of(r); });
    records.insert(after, std::move(record));
  } else if (better(record, *same)) {
    *same = std::move(record);
  }
}

void put(std::vector<UnusableRecord>& records, UnusableRecord record) {
  const auto order = [](const UnusableRecord& r) { return std::tuple(r.failed, dump_text(r.record)); };
  const auto at = std::ranges::lower_bound(records, order(record), {}, order);
  if (at == records.end() || order(*at) != order(record)) records.insert(at, std::move(record));
}

std::string label_of(const GpuProperties& gpu) {
  return fmt::format("{} ({}, {} multiprocessors, {} MHz memory clock)", printable(gpu.name), gpu.arch,
                     gpu.multiprocessors, gpu.memory_clock_mhz);
}

/// Makes the database one of this GPU model.
void take_gpu(Database& database, const GpuProperties& gpu) {
  if (!database.gpu) {
    database.gpu = gpu;
  } else if (!same_model(*database.gpu, gpu)) {
    throw std::invalid_argument(
        fmt::format("a database holds what was measured on one GPU model: this one is of {}, not of {}",
                    label_of(*database.gpu), label_of(gpu)));
  } else {
    database.gpu->name = std::max(database.gpu->name, gpu.name);
  }
}

/// All fields of both; of two values of one field, the object, or the one whose text is last.
void unite(Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    for (const auto& [name, value] : b.items()) {
      if (a.contains(name)) {
        unite(a[name], value);
      } else {
        a[name] = value;
      }
    }
  } else if (std::tuple(b.is_object(), dump_text(b)) > std::tuple(a.is_object(), dump_text(a))) {
    a = b;
  }
}

template <typename Record>
void read_records(JsonObject& document, std::string_view name, bool failed, Database& database,
                  std::vector<Record>& records) {
  const Json& list = document.take(name);
  if (!list.is_array()) throw std::invalid_argument(fmt::format("{}: expected a list, found {}", name, describe(list)));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Operator any = Operator::conv1d_pack_fwd;  // replaced by what is read
    Record record{.spec = Spec(any), .config = Config(any)};
    const std::string place = fmt::format("{}[{}]", name, i);
    std::string problem = read_record(list[i], place, record);
    if (problem.empty() && !database.gpu) {
      throw std::invalid_argument(fmt::format("{}: the document names no GPU that this was measured on", place));
    }
    if (problem.empty()) {
      record.gpu = *database.gpu;
      put(records, std::move(record));
    } else {
      put(database.unusable, {failed, list[i], std::move(problem)});
    }
  }
}

/// Version 1, all minor versions. `version` holds what else stood beside the two numbers.
Database read_major_1(JsonObject& document) {
  Database database;
  Json unknown_of_gpu = Json::object();
  if (document.has("gpu")) database.gpu = read_gpu(document.take("gpu"), "gpu", unknown_of_gpu);
  read_records(document, "entries", false, database, database.entries);
  read_records(document, "failed", true, database, database.failed);
  database.unknown = document.rest();
  if (!unknown_of_gpu.empty()) database.unknown["gpu"] = std::move(unknown_of_gpu);
  return database;
}

/// How the documents of each major version become what this version holds.
struct Migration {
  int major;
  Database (*read)(JsonObject& document);
};
constexpr Migration kMigrations[] = {{1, read_major_1}};

Json parse_json(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) {
      throw std::invalid_argument(fmt::format("more than {} objects and lists are inside each other", kDeepest));
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    // The parser itself would keep the last of two equal keys.
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw std::invalid_argument(fmt::format("expected every key once, found {} twice", describe(value)));
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    throw std::invalid_argument(fmt::format("not JSON: {}", reason_of(error)));
  }
}

/// Objects and lists of the first `levels` levels have a line for each member.
void write_lines(std::string& out, const Ordered& json, int levels, const std::string& indent) {
  if (levels == 0 || !json.is_structured() || json.empty()) {
    out += dump_text(json);
    return;
  }
  const std::string inner = indent + "  ";
  out += json.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& item : json.items()) {
    out += first ? "\n" : ",\n";
    first = false;
    out += inner;
    if (json.is_object()) out += dump_text(Ordered(item.key())) + ": ";
    write_lines(out, item.value(), levels - 1, inner);
  }
  out += "\n" + indent + (json.is_object() ? "}" : "]");
}

Ordered document_of(const Database& database) {
  Ordered document = Ordered::object();
  document["format"] = kFormat;
  document["version"] = {{"major", kDatabaseMajor}, {"minor", std::max(database.minor, kDatabaseMinor)}};
  if (database.gpu) document["gpu"] = json_of(*database.gpu);
  Ordered entries = Ordered::array(), failed = Ordered::array();
  for (const Entry& entry : database.entries) entries.push_back(json_of(entry));
  for (const FailedCandidate& candidate : database.failed) failed.push_back(json_of(candidate));
  for (const UnusableRecord& record : database.unusable) {
    (record.failed ? failed : entries).push_back(Ordered(record.record));
  }
  document["entries"] = std::move(entries);
  document["failed"] = std::move(failed);
  add_unknown(document, database.unknown);
  return document;
}

/// Records of `a` that are not in `b`.
template <typename Record>
std::vector<Record> without(std::span<const Record> a, std::span<const Record> b) {
  std::vector<Record> left;
  for (const Record& record : a) {
    if (std::ranges::none_of(b, [&](const Record& other) { return same_place(record, other); })) left.push_back(record);
  }
  return left;
}

std::string label_of(const FailedCandidate& candidate) {
  return fmt::format("{} {}", name_of(candidate.spec.op), candidate.config.values.text());
}

}  // namespace

Database parse_database(std::string_view text) {
  const Json json = parse_json(text);
  JsonObject document(json, "");
  if (const std::string format = document.text("format"); format != kFormat) {
    throw std::invalid_argument(fmt::format("format: expected '{}', found '{}'", kFormat, format));
  }
  JsonObject version = document.object("version");
  const int major = version.small_integer("major", 1), minor = version.small_integer("minor");
  if (major > kDatabaseMajor) {
    throw NewerDatabase(
        fmt::format("it has version {}.{}, and this packjit reads versions up to {}.x; use a newer packjit for it",
                    major, minor, kDatabaseMajor));
  }
  document.keep_rest_of("version", version);
  const Migration* migration = std::ranges::find(kMigrations, major, &Migration::major);
  Database database = migration->read(document);
  if (major == kDatabaseMajor) database.minor = std::max(minor, kDatabaseMinor);
  return database;
}

std::string write_database(const Database& database, DatabaseLayout layout) {
  const Ordered document = document_of(database);
  if (layout == DatabaseLayout::single) return dump_text(document);
  constexpr int kLevels = 3;  // the document, its lists, each of their records
  std::string text;
  write_lines(text, document, kLevels, "");
  return text + "\n";
}

bool better(const Entry& a, const Entry& b) {
  if (a.date != b.date) return a.date > b.date;
  if (const auto nvrtc = compare_versions(a.nvrtc, b.nvrtc); std::is_neq(nvrtc)) return std::is_gt(nvrtc);
  if (const auto driver = compare_versions(a.driver, b.driver); std::is_neq(driver)) return std::is_gt(driver);
  if (a.time.median_ms != b.time.median_ms) return a.time.median_ms < b.time.median_ms;
  return dump_text(json_of(a)) < dump_text(json_of(b));
}

void add(Database& database, Entry entry) {
  if (const std::string problem = why_unusable(entry); !problem.empty()) {
    throw std::invalid_argument(fmt::format("cannot add {} to the tuning database: {}", label_of(entry), problem));
  }
  take_gpu(database, entry.gpu);
  put(database.entries, std::move(entry));
}

void add(Database& database, FailedCandidate candidate) {
  if (const std::string problem = why_unusable(candidate); !problem.empty()) {
    throw std::invalid_argument(fmt::format("cannot add {} to the tuning database: {}", label_of(candidate), problem));
  }
  take_gpu(database, candidate.gpu);
  put(database.failed, std::move(candidate));
}

Database merge(Database a, Database b) {
  if (b.gpu) take_gpu(a, *b.gpu);
  for (Entry& entry : b.entries) put(a.entries, std::move(entry));
  for (FailedCandidate& candidate : b.failed) put(a.failed, std::move(candidate));
  for (UnusableRecord& record : b.unusable) put(a.unusable, std::move(record));
  for (Entry& entry : a.entries) entry.gpu = *a.gpu;  // the label may be another
  for (FailedCandidate& candidate : a.failed) candidate.gpu = *a.gpu;
  a.minor = std::max(a.minor, b.minor);
  unite(a.unknown, b.unknown);
  return a;
}

DatabaseDifference diff(const Database& a, const Database& b) {
  DatabaseDifference found;
  found.only_a = without<Entry>(a.entries, b.entries);
  found.only_b = without<Entry>(b.entries, a.entries);
  for (const Entry& entry : a.entries) {
    const auto same = std::ranges::find_if(b.entries, [&](const Entry& other) { return same_place(entry, other); });
    if (same != b.entries.end() && json_of(entry) != json_of(*same)) found.changed.emplace_back(entry, *same);
  }
  found.failed_only_a = without<FailedCandidate>(a.failed, b.failed);
  found.failed_only_b = without<FailedCandidate>(b.failed, a.failed);
  return found;
}

std::vector<std::string> prune(Database& database, const PruneRules& rules) {
  std::vector<std::string> removed;
  const auto outdated = [&](const auto& record) {
    if (!rules.source_digest) return false;
    const std::string now = rules.source_digest(record.spec, record.config);
    if (now == record.source_digest) return false;
    removed.push_back(
        fmt::format("{}: its source was another (digest {}, now {})", label_of(record), record.source_digest, now));
    return true;
  };
  std::erase_if(database.entries, [&](const Entry& entry) { return outdated(entry); });
  std::erase_if(database.failed, [&](const FailedCandidate& candidate) {
    if (!rules.failed) return outdated(candidate);
    removed.push_back(fmt::format("{}: it had failed: {}", label_of(candidate), candidate.reason));
    return true;
  });
  if (rules.unusable) {
    for (const UnusableRecord& record : database.unusable) removed.push_back(record.reason);
    database.unusable.clear();
  }
  return removed;
}

std::string label_of(const Entry& entry) {
  return fmt::format("{} {} ({})", name_of(entry.spec.op), entry.spec.values.text(),
                     text_of(entry.bucket, entry.spec.op));
}

bool same_model(const GpuProperties& a, const GpuProperties& b) {
  return a.arch == b.arch && a.multiprocessors == b.multiprocessors &&
         a.shared_bytes_per_block == b.shared_bytes_per_block && a.l2_bytes == b.l2_bytes &&
         a.memory_clock_mhz == b.memory_clock_mhz;
}

}  // namespace packjit
