#include "runtime/config_choice.hpp"

#include <fmt/format.h>

#include <utility>

#include "database/shipped.hpp"

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

const std::vector<const Database*>& ConfigChooser::databases_for(const GpuProperties& gpu) {
  const std::lock_guard lock(mutex_);
  const auto [it, is_new] = models_.try_emplace(database_stem(gpu));
  Model& model = it->second;
  if (!is_new) return model.databases;
  if (location_.off) {
    if (log_) log_({LogLevel::event, "tuning databases are not used: PACKJIT_DATABASE_DIR is off", {}});
    return model.databases;
  }
  std::string text;
  if (location_.problem.empty()) {
    model.user = DatabaseFile(files_, location_.folder, it->first, gpu, clock_, log_).load();
    model.databases.push_back(&model.user);
    text = counted(model.user);
  } else {
    text = "no tuning database of the user's";
    if (log_) log_({LogLevel::warning, fmt::format("tuned entries are not used: {}", location_.problem), {}});
  }
  for (const Database& database : shipped_) {
    if (!database.gpu || database.gpu->arch != gpu.arch) continue;
    model.databases.push_back(&database);
    text += ", " + counted(database);
  }
  if (log_) log_({LogLevel::event, fmt::format("Configs for {} ({}): {}", gpu.name, gpu.arch, text), {}});
  return model.databases;
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
