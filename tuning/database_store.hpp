#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "database/database.hpp"
#include "runtime/database_file.hpp"
#include "runtime/file_system.hpp"
#include "tuning/tuning_run.hpp"

namespace packjit {

/// The user's database as a TuningStore, with what was shipped beside it. Candidates measured for a target in flight
/// are lines of STEM.tried in the same folder, which finish() removes.
class DatabaseStore final : public TuningStore {
 public:
  /// Of the GPU's model and these versions, in the folder that the environment names. Throws EnvironmentError where
  /// there is none.
  DatabaseStore(const GpuProperties& gpu, const std::string& nvrtc, const std::string& driver);
  DatabaseStore(FileSystem& files, const std::string& folder, const GpuProperties& gpu, const std::string& versions,
                LogCallback log);

  [[nodiscard]] std::optional<Entry> best(const Spec& spec, const Bucket& bucket, const GpuProperties& gpu) override;
  /// As look_up() has it, of this user's Entries and those that are shipped.
  [[nodiscard]] std::optional<Config> in_use(const TuningTarget& target, const GpuProperties& gpu) override;
  [[nodiscard]] std::vector<Entry> nearest(const Spec& spec, const Bucket& bucket) override;
  [[nodiscard]] bool failed(const FailedCandidate& candidate) override;
  /// Throw EnvironmentError where the record cannot be written.
  void add(const Entry& entry) override;
  void add(const FailedCandidate& failed) override;
  void add(const TuningTarget& target, const TriedCandidate& tried) override;
  [[nodiscard]] std::vector<TriedCandidate> tried(const TuningTarget& target) override;

  /// Moves the records into the document and forgets what was measured of targets in flight.
  void finish();
  [[nodiscard]] std::string path() const { return file_.path(); }

 private:
  [[nodiscard]] std::string key_of(const TuningTarget& target) const;

  std::filesystem::path tried_path_;
  std::string versions_;
  DatabaseFile file_;
  Database known_;
  std::map<std::string, std::vector<std::string>> tried_;  // JSON lines, by target
};

}  // namespace packjit
