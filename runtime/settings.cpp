#include "runtime/settings.hpp"

#include <cstdlib>

namespace packjit {
namespace {
constexpr Setting kSettings[] = {
    {"PACKJIT_NVRTC", "path of the NVRTC library; nothing else is searched when it is set", "searched"},
    {"PACKJIT_HOST_COMPILER", "C++ compiler for host execution", "c++, g++ or clang++ on PATH"},
    {"PACKJIT_CACHE_DIR", "absolute path of the folder of the disk cache of compiled kernels",
     "packjit in XDG_CACHE_HOME, or ~/.cache/packjit"},
    {"PACKJIT_CACHE_BYTES", "most bytes of the disk cache; 0 turns it off", "1073741824"},
    {"PACKJIT_DATABASE_DIR",
     "absolute path of the folder of the tuning databases of this user; off: no tuned entry is used, shipped ones "
     "neither",
     "packjit in XDG_DATA_HOME, or ~/.local/share/packjit"},
    {"PACKJIT_SELF_CHECK", "on or off: check a kernel on its first use on a kind of GPU (the embedded library)", "on"},
    {"PACKJIT_CAPTURE", "file to which the embedded library adds the shapes of calls, for packjit tune --from-capture",
     "nothing is recorded"},
    {"XDG_CACHE_HOME", "absolute path of the user's caches, for the disk cache", "~/.cache"},
    {"XDG_DATA_HOME", "absolute path of the user's data, for the tuning databases", "~/.local/share"},
    {"HOME", "the user's home, for the disk cache, the tuning databases and Python wheels", "not used"},
    {"CUDA_HOME", "root of a CUDA toolkit, searched for NVRTC", "not searched"},
    {"CUDA_PATH", "root of a CUDA toolkit, searched for NVRTC after CUDA_HOME", "not searched"},
    {"VIRTUAL_ENV", "Python environment, searched for the wheel nvidia-cuda-nvrtc", "not searched"},
    {"CONDA_PREFIX", "conda environment, searched for NVRTC", "not searched"},
    {"CUDA_VISIBLE_DEVICES", "GPUs that the driver shows to this process", "all"},
};
}  // namespace

std::span<const Setting> settings() { return kSettings; }

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

UserFolder user_folder(const char* own, const char* xdg, const std::string& below_home) {
  const auto in = [&](const std::string& variable, const std::string& value, const std::string& below) {
    if (value.front() == '/') return UserFolder{value + below, ""};
    return UserFolder{"", variable + " is '" + value + "', a relative path, which is another folder in each working " +
                              "directory; set " + own + " to the absolute path of a folder"};
  };
  if (const auto folder = environment(own)) return in(own, *folder, "");
  if (const auto data = environment(xdg); data && data->front() == '/') return in(xdg, *data, "/packjit");
  if (const auto home = environment("HOME")) return in("HOME", *home, "/" + below_home + "/packjit");
  return {"", std::string("none of ") + own + ", " + xdg + " and HOME is set; set " + own + " to a folder"};
}

bool self_check_setting(std::string& problem) {
  const std::string value = environment("PACKJIT_SELF_CHECK").value_or("on");
  problem.clear();
  if (value != "on" && value != "off") problem = "PACKJIT_SELF_CHECK is '" + value + "', expected on or off; on holds";
  return value != "off";
}

}  // namespace packjit
