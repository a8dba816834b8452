#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "database/lookup.hpp"
#include "runtime/database_file.hpp"
#include "runtime/device.hpp"

namespace packjit {

/// What look-ups compare of a device.
[[nodiscard]] GpuProperties gpu_properties(const DeviceInfo& device);

/// Looks Configs up in the user's databases of a GPU's architecture and in those that were shipped. Files are read at
/// the first question about a model, never again: what is tuned meanwhile counts from the next process on. Safe to use
/// from several threads.
class ConfigChooser {
 public:
  /// `files` and `shipped` must outlive it.
  ConfigChooser(FileSystem& files, DatabaseLocation location, std::span<const Database> shipped, Clock clock,
                LogCallback log);
  [[nodiscard]] Choice choose(const Spec& spec, const GpuProperties& gpu, const Workload& work);
  /// The process's own, for the folder that the environment named at the first call.
  [[nodiscard]] static ConfigChooser& shared();

 private:
  struct Model {
    std::vector<Database> user;
    std::vector<const Database*> databases;  ///< the user's first; moving a Model keeps them where they are
    Model() = default;
    Model(Model&&) = default;
    Model(const Model&) = delete;
  };
  const std::vector<const Database*>& databases_for(const GpuProperties& gpu);
  [[nodiscard]] Model read_model(const GpuProperties& gpu);
  /// The GPU's own first, then those of other models of its architecture; returns why some could not be read.
  [[nodiscard]] std::string read_user_databases(const GpuProperties& gpu, std::vector<Database>& databases);

  FileSystem& files_;
  const DatabaseLocation location_;
  const std::span<const Database> shipped_;
  const Clock clock_;
  const LogCallback log_;
  std::mutex mutex_;
  std::map<std::string, Model> models_;  ///< by stem; a Model that is there does not change
};

/// Through the process's own chooser.
[[nodiscard]] Choice choose_config(const Spec& spec, const GpuProperties& gpu, const Workload& work);
/// The same for a GPU; for host execution always the built-in Config.
[[nodiscard]] Choice choose_config(const Spec& spec, const DeviceInfo& device, const Workload& work);

}  // namespace packjit
