#include "tuning/database_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "database/lookup.hpp"
#include "database/shipped.hpp"
#include "runtime/digest.hpp"
#include "runtime/errors.hpp"
#include "tuning/trial_json.hpp"

namespace packjit {
namespace {

std::string usable_folder() {
  const DatabaseLocation location = database_location();
  if (location.off) {
    throw EnvironmentError(
        "the tuning database is switched off (PACKJIT_DATABASE_DIR is 'off'), so there is nowhere to keep results; "
        "unset "
        "it, or name a folder");
  }
  if (location.folder.empty())
    throw EnvironmentError("there is no folder for the tuning database: " + location.problem);
  return location.folder;
}

std::string tried_line(const std::string& key, const TriedCandidate& tried) {
  const nlohmann::json json = {{"target", key},
                               {"config", tried.config.values.text()},
                               {"ratio", tried.ratio},
                               {"median_ms", tried.median_ms},
                               {"rounds", tried.rounds}};
  return json.dump();
}

/// Whether everything but reason and measured shape is equal.
bool same_candidate(const FailedCandidate& a, const FailedCandidate& b) {
  return a.config == b.config && a.spec == b.spec && a.source_digest == b.source_digest && a.nvrtc == b.nvrtc &&
         a.driver == b.driver && same_model(a.gpu, b.gpu);
}

}  // namespace

DatabaseStore::DatabaseStore(const GpuProperties& gpu, const std::string& nvrtc, const std::string& driver)
    : DatabaseStore(posix_file_system(), usable_folder(), gpu, nvrtc + " " + driver, write_log) {}

DatabaseStore::DatabaseStore(FileSystem& files, const std::string& folder, const GpuProperties& gpu,
                             const std::string& versions, LogCallback log)
    : tried_path_(std::filesystem::path(folder) / (database_stem(gpu) + ".tried")),
      versions_(versions),
      file_(files, folder, database_stem(gpu), gpu, system_clock(), std::move(log)),
      known_(file_.load()) {
  // A line that has no end, or no key, was not written to the end.
  std::ifstream lines(tried_path_);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("target")) tried_[json.value("target", "")].push_back(line);
  }
}

std::optional<Entry> DatabaseStore::best(const Spec& spec, const Bucket& bucket, const GpuProperties& gpu) {
  const auto found = std::ranges::find_if(known_.entries, [&](const Entry& entry) {
    return entry.bucket == bucket && entry.spec == spec && same_model(entry.gpu, gpu);
  });
  return found == known_.entries.end() ? std::nullopt : std::optional(*found);
}

std::optional<Config> DatabaseStore::in_use(const TuningTarget& target, const GpuProperties& gpu) {
  std::vector<const Database*> databases = {&known_};
  for (const Database& shipped : shipped_databases()) databases.push_back(&shipped);
  return look_up(databases, target.spec, gpu, target.work).config;
}

std::vector<Entry> DatabaseStore::nearest(const Spec& spec, const Bucket& bucket) {
  std::vector<std::pair<double, const Entry*>> near;
  const auto add_from = [&](const Database& database) {
    for (const Entry& entry : database.entries) {
      if (entry.spec.op != spec.op) continue;
      if (const auto away = distance(spec.op, bucket, entry.bucket)) near.emplace_back(*away, &entry);
    }
  };
  add_from(known_);
  for (const Database& shipped : shipped_databases()) add_from(shipped);
  std::ranges::stable_sort(near, {}, [](const auto& pair) { return pair.first; });
  constexpr std::size_t kMost = 8;
  std::vector<Entry> entries;
  for (const auto& pair : near) {
    if (entries.size() < kMost) entries.push_back(*pair.second);
  }
  return entries;
}

bool DatabaseStore::failed(const FailedCandidate& candidate) {
  return std::ranges::any_of(known_.failed, [&](const auto& known) { return same_candidate(known, candidate); });
}

void DatabaseStore::add(const Entry& entry) {
  packjit::add(known_, entry);
  if (!file_.append(entry)) throw EnvironmentError("what was tuned cannot be written into " + file_.path());
}

void DatabaseStore::add(const FailedCandidate& failed) {
  packjit::add(known_, failed);
  if (!file_.append(failed)) throw EnvironmentError("what was tried cannot be written into " + file_.path());
}

void DatabaseStore::add(const TuningTarget& target, const TriedCandidate& tried) {
  std::ofstream(tried_path_, std::ios::app) << tried_line(key_of(target), tried) + "\n";
}

std::vector<TriedCandidate> DatabaseStore::tried(const TuningTarget& target) {
  std::vector<TriedCandidate> list;
  const auto found = tried_.find(key_of(target));
  if (found == tried_.end()) return list;
  for (const std::string& line : found->second) {
    try {
      const nlohmann::json json = nlohmann::json::parse(line);
      const std::vector<Config> config = configs_of(nlohmann::json::array({json.at("config")}), target.spec.op);
      list.push_back({config.front(), json.at("ratio"), json.at("median_ms"), json.at("rounds")});
    } catch (const std::exception&) {
      continue;  // written by another version: it is measured again
    }
  }
  return list;
}

void DatabaseStore::finish() {
  static_cast<void>(file_.compact());
  std::error_code none;
  std::filesystem::remove(tried_path_, none);
}

std::string DatabaseStore::key_of(const TuningTarget& target) const {
  return digest_hex(json_of(target).dump() + versions_);
}

}  // namespace packjit
