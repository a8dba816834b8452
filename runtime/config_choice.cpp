#include "runtime/config_choice.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "database/shipped.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

std::string counted(const Database& database) {
  return fmt::format("{} tuned entries (digest {}) of {}", database.entries.size(), database_digest(database),
                     database.origin);
}

}  // namespace

GpuProperties gpu_properties(const DeviceInfo& device) {
  return {device.name,
          device.arch,
          device.multiprocessors,
          device.shared_bytes_per_block,
          device.l2_bytes,
          device.memory_clock_mhz};
}

ConfigChooser::ConfigChooser(FileSystem& files, DatabaseLocation location, std::span<const Database> shipped,
                             Clock clock, LogCallback log)
    : files_(files),
      location_(std::move(location)),
      shipped_(shipped),
      clock_(std::move(clock)),
      log_(std::move(log)) {}

ConfigChooser& ConfigChooser::shared() {
  // Never destroyed: threads may use it while the process ends.
  static auto* const kChooser =
      new ConfigChooser(posix_file_system(), database_location(), shipped_databases(), system_clock(), &write_log);
  return *kChooser;
}

std::string ConfigChooser::read_user_databases(const GpuProperties& gpu, std::vector<Database>& databases) {
  std::vector<std::string> stems;
  try {
    stems = database_stems(files_, location_.folder);
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  const std::string own = database_stem(gpu);
  const auto load = [&](const std::string& stem, const std::optional<GpuProperties>& model) {
    return DatabaseFile(files_, location_.folder, stem, model, clock_, log_).load();
  };
  // Where only an architecture is asked about there is no model.
  if (gpu.multiprocessors > 0) databases.push_back(load(own, gpu));
  for (const std::string& stem : stems) {
    if (stem == own || !stem.starts_with(gpu.arch + "_")) continue;
    Database other = load(stem, std::nullopt);
    // A file under another model's name may be a copy of anything; `packjit db check` reports it.
    if (other.gpu && database_stem(*other.gpu) == stem) databases.push_back(std::move(other));
  }
  return {};
}

ConfigChooser::Model ConfigChooser::read_model(const GpuProperties& gpu) {
  Model model;
  if (location_.off) {
    if (log_) log_({LogLevel::event, "tuning databases are not used: PACKJIT_DATABASE_DIR is off", {}});
    return model;
  }
  std::string text, problem = location_.problem;
  if (problem.empty()) problem = read_user_databases(gpu, model.user);
  if (log_ && !problem.empty()) log_({LogLevel::warning, fmt::format("tuned entries are not used: {}", problem), {}});
  for (const Database& database : model.user) {
    model.databases.push_back(&database);
    text += (text.empty() ? "" : ", ") + counted(database);
  }
  if (text.empty()) text = "no tuning database of the user's";
  for (const Database& database : shipped_) {
    if (!database.gpu || database.gpu->arch != gpu.arch) continue;
    model.databases.push_back(&database);
    text += ", " + counted(database);
  }
  if (log_) log_({LogLevel::event, fmt::format("Configs for {} ({}): {}", gpu.name, gpu.arch, text), {}});
  return model;
}

const std::vector<const Database*>& ConfigChooser::databases_for(const GpuProperties& gpu) {
  const std::lock_guard lock(mutex_);
  const std::string stem = database_stem(gpu);
  auto found = models_.find(stem);
  // A model whose databases could not be read to the end, for want of memory, is read again at the next question.
  if (found == models_.end()) found = models_.emplace(stem, read_model(gpu)).first;
  return found->second.databases;
}

Choice ConfigChooser::choose(const Spec& spec, const GpuProperties& gpu, const Workload& work) {
  return look_up(databases_for(gpu), spec, gpu, work);
}

Choice choose_config(const Spec& spec, const GpuProperties& gpu, const Workload& work) {
  return ConfigChooser::shared().choose(spec, gpu, work);
}

Choice choose_config(const Spec& spec, const DeviceInfo& device, const Workload& work) {
  const GpuProperties gpu = gpu_properties(device);
  return device.kind == "cuda" ? choose_config(spec, gpu, work) : built_in_choice(spec, gpu, work);
}

}  // namespace packjit
