#include "runtime/nvrtc_search.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "runtime/settings.hpp"

namespace fs = std::filesystem;

namespace packjit {
namespace {

// Newest first. The unversioned name exists only where development files are installed.
constexpr const char* kLibraryNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr const char* kToolkitFolders[] = {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"};
constexpr const char* kWheelFolders[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

std::vector<fs::path> subfolders(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

class Search {
 public:
  explicit Search(std::vector<std::string>* searched) : searched_(searched) {}

  void folder(const std::string& origin, const fs::path& folder) {
    if (std::find(seen_.begin(), seen_.end(), folder) != seen_.end()) return;
    seen_.push_back(folder);
    if (searched_ != nullptr) searched_->push_back(origin + ": " + folder.string());
    for (const char* name : kLibraryNames) {
      std::error_code error;
      if (fs::exists(folder / name, error)) {
        candidates.push_back({origin, (folder / name).string()});
        return;
      }
    }
  }
  void toolkit(const std::string& origin, const fs::path& root) {
    for (const char* name : kToolkitFolders) folder(origin, root / name);
  }
  void system_names() {
    for (const char* name : kLibraryNames) candidates.push_back({"system library path", name});
    if (searched_ != nullptr) searched_->push_back("system library path: libnvrtc.so.13, libnvrtc.so.12");
  }
  // A Python installation or virtual environment: PREFIX/lib/python3.x/{site,dist}-packages.
  void python(const std::string& origin, const fs::path& prefix) {
    for (const fs::path& version : subfolders(prefix / "lib", "python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        std::error_code error;
        if (!fs::is_directory(version / packages, error)) continue;
        for (const char* wheel : kWheelFolders) folder(origin, version / packages / wheel);
      }
    }
  }

  std::vector<NvrtcCandidate> candidates;

 private:
  std::vector<std::string>* searched_;
  std::vector<fs::path> seen_;
};

// The prefixes of the Python interpreters on PATH: /usr for /usr/bin/python3. Links are followed, because version
// managers put links on PATH.
std::vector<fs::path> python_prefixes() {
  std::vector<fs::path> prefixes;
  const std::string path = environment("PATH").value_or("");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path folder = path.substr(begin, end - begin);
    begin = end + 1;
    std::error_code error;
    if (folder.empty() || !fs::exists(folder / "python3", error)) continue;
    prefixes.push_back(folder.parent_path());
    const fs::path real = fs::canonical(folder / "python3", error);
    if (!error) prefixes.push_back(real.parent_path().parent_path());
  }
  return prefixes;
}

}  // namespace

std::vector<NvrtcCandidate> nvrtc_candidates(std::vector<std::string>* searched) {
  if (const auto path = environment("PACKJIT_NVRTC")) {
    if (searched != nullptr) searched->push_back("PACKJIT_NVRTC: " + *path);
    return {{"PACKJIT_NVRTC", *path}};
  }
  Search search(searched);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto root = environment(name)) search.toolkit(name, *root);
  }
  search.toolkit("CUDA toolkit", "/usr/local/cuda");
  for (const fs::path& root : subfolders("/usr/local", "cuda-")) search.toolkit("CUDA toolkit", root);
  search.system_names();
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto root = environment(name)) {
      search.folder(name, fs::path(*root) / "lib");
      search.python("Python wheel", *root);
    }
  }
  for (const fs::path& prefix : python_prefixes()) search.python("Python wheel", prefix);
  if (const auto home = environment("HOME")) {
    search.python("Python wheel", fs::path(*home) / ".local");
    for (const fs::path& version : subfolders(fs::path(*home) / ".pyenv/versions", "3")) {
      search.python("Python wheel", version);
    }
  }
  for (const char* prefix : {"/usr/local", "/usr"}) search.python("Python wheel", prefix);
#ifdef PACKJIT_NVRTC_FALLBACK_DIR
  search.folder("build tree", PACKJIT_NVRTC_FALLBACK_DIR);
#endif
  return search.candidates;
}

}  // namespace packjit
