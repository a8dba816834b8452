#include "runtime/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "runtime/digest.hpp"
#include "runtime/errors.hpp"
#include "runtime/nvrtc_library.hpp"
#include "runtime/nvrtc_search.hpp"

namespace packjit {
namespace {

constexpr const char* kAdvice =
    "install a CUDA toolkit (12 or 13), or the Python wheel with `pip install nvidia-cuda-nvrtc`, or set PACKJIT_NVRTC "
    "to the path of libnvrtc.so.13";

std::string digest_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return digest_hex(std::string(std::istreambuf_iterator<char>(file), {}));
}

// Empty when the library can be used, else why not.
std::string complete(Nvrtc::Library& library) {
  if (!library.file.is_open()) return library.file.error();
  if (const char* missing = library.bind()) return fmt::format("too old: it lacks {}", missing);
  int count = 0;
  nvrtcResult status = library.get_version(&library.version.major, &library.version.minor);
  if (status == NVRTC_SUCCESS) status = library.arch_count(&count);
  std::vector<int> numbers(static_cast<std::size_t>(std::max(count, 0)));
  if (status == NVRTC_SUCCESS && count > 0) status = library.get_archs(numbers.data());
  if (status != NVRTC_SUCCESS) return library.error_string(status);
  std::sort(numbers.begin(), numbers.end());
  for (int number : numbers) library.archs.push_back(fmt::format("sm_{}", number));
  library.build = library.file.build_id();
  if (library.build.empty()) library.build = digest_of_file(library.file.path());
  return {};
}

// NVRTC opens its builtins by their bare name when it first compiles. A wheel's folder is on no search path, so they
// are opened here, from beside it; where they are elsewhere, the system's search is left to find them.
DynamicLibrary open_builtins(const Nvrtc::Library& library) {
  const std::string& path = library.file.path();
  const std::string folder = path.substr(0, path.find_last_of('/') + 1);
  return DynamicLibrary::open(
      fmt::format("{}libnvrtc-builtins.so.{}.{}", folder, library.version.major, library.version.minor));
}

}  // namespace

const char* Nvrtc::Library::bind() {
  const char* missing = nullptr;
  const auto need = [&](auto*& function, const char* name) {
    if (!file.load(function, name) && missing == nullptr) missing = name;
  };
  need(error_string, "nvrtcGetErrorString");
  need(get_version, "nvrtcVersion");
  need(arch_count, "nvrtcGetNumSupportedArchs");
  need(get_archs, "nvrtcGetSupportedArchs");
  need(create_program, "nvrtcCreateProgram");
  need(destroy_program, "nvrtcDestroyProgram");
  need(compile_program, "nvrtcCompileProgram");
  need(log_size, "nvrtcGetProgramLogSize");
  need(get_log, "nvrtcGetProgramLog");
  need(cubin_size, "nvrtcGetCUBINSize");
  need(get_cubin, "nvrtcGetCUBIN");
  need(ptx_size, "nvrtcGetPTXSize");
  need(get_ptx, "nvrtcGetPTX");
  return missing;
}

Nvrtc::Nvrtc(std::unique_ptr<const Library> library) : library_(std::move(library)) {}
Nvrtc::~Nvrtc() = default;

std::shared_ptr<const Nvrtc> Nvrtc::find() {
  std::vector<std::string> searched;
  std::string failures;
  for (const NvrtcCandidate& candidate : nvrtc_candidates(&searched)) {
    auto library = std::make_unique<Library>();
    library->file = DynamicLibrary::open(candidate.path);
    library->origin = candidate.origin;
    const std::string problem = complete(*library);
    if (problem.empty()) {
      library->builtins = open_builtins(*library);
      return std::make_shared<const Nvrtc>(std::move(library));
    }
    failures += fmt::format("\n  {} ({}): {}", candidate.path, candidate.origin, problem);
  }
  std::string places;
  for (const std::string& place : searched) places += "\n  " + place;
  throw EnvironmentError(fmt::format("NVRTC, the CUDA run-time compiler, was not found.\nLooked in:{}{}{}\nTo do: {}",
                                     places, failures.empty() ? "" : "\nCould not use:", failures, kAdvice));
}

std::shared_ptr<const Nvrtc> Nvrtc::shared() {
  static std::mutex mutex;
  // Never destroyed: threads may still compile while the process ends.
  static auto* const kFound = new std::shared_ptr<const Nvrtc>;
  const std::lock_guard lock(mutex);
  if (*kFound == nullptr) *kFound = find();
  return *kFound;
}

const std::string& Nvrtc::path() const { return library_->file.path(); }
const std::string& Nvrtc::origin() const { return library_->origin; }
NvrtcVersion Nvrtc::version() const { return library_->version; }
std::string Nvrtc::version_text() const { return fmt::format("{}.{}", version().major, version().minor); }
const std::string& Nvrtc::build() const { return library_->build; }
const std::vector<std::string>& Nvrtc::archs() const { return library_->archs; }

}  // namespace packjit
