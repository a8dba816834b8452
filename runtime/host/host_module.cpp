#include "runtime/host/host_module.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <future>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "runtime/errors.hpp"
#include "runtime/host/host_compiler.hpp"

namespace packjit::host {
namespace {

std::string loader_message() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

struct ModuleCache {
  using Result = std::shared_future<std::shared_ptr<const HostModule>>;
  std::mutex mutex;
  std::unordered_map<std::string, Result> modules;  ///< by compiler and text
  std::atomic<std::size_t> compiles = 0;
};

/// Never destroyed: objects that use modules may live until the process ends.
ModuleCache& cache() {
  static auto* const kInstance = new ModuleCache;
  return *kInstance;
}

}  // namespace

HostModule::HostModule(const std::string& compiler, const std::string& text) {
  const PrivateDirectory directory;  // the file can go once it is loaded
  const std::string object = compile_host_source(compiler, text, directory);
  handle_ = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    throw EnvironmentError(fmt::format(
        "loading freshly compiled host code failed: {}; set TMPDIR to a directory that allows programs to be run",
        loader_message()));
  }
  using Layout = unsigned (*)();
  const auto layout = reinterpret_cast<Layout>(dlsym(handle_, "packjit_host_layout"));
  if (layout == nullptr || dlsym(handle_, "packjit_thread") == nullptr || layout() != sizeof(HostThread)) {
    dlclose(handle_);
    throw std::invalid_argument(
        "source compiled, but it is not the host form: expected packjit_thread and packjit_host_layout of this "
        "version, as "
        "`packjit generate` prints them for host execution; print the source again and repeat the edit");
  }
}

HostModule::~HostModule() { dlclose(handle_); }

HostModule::Entry HostModule::entry(const std::string& kernel) const {
  const std::string symbol = "packjit_enter_" + kernel;
  const auto found = reinterpret_cast<Entry>(dlsym(handle_, symbol.c_str()));
  if (found == nullptr) {
    throw std::invalid_argument(
        fmt::format("launching kernel {} on the host: its module has no function {}; is it another operator's source?",
                    kernel, symbol));
  }
  return found;
}

HostThread** HostModule::current_thread() const { return static_cast<HostThread**>(dlsym(handle_, "packjit_thread")); }

std::shared_ptr<const HostModule> shared_host_module(const std::string& text) {
  const std::string compiler = find_host_compiler();
  const std::string key = compiler + "\n" + text;
  ModuleCache& modules = cache();
  std::promise<std::shared_ptr<const HostModule>> promise;
  ModuleCache::Result result;
  {
    const std::lock_guard lock(modules.mutex);
    const auto found = modules.modules.find(key);
    if (found != modules.modules.end()) {
      result = found->second;
    } else {
      modules.modules.emplace(key, promise.get_future().share());
    }
  }
  if (result.valid()) return result.get();  // waits, where another thread is still compiling

  ++modules.compiles;
  try {
    auto module = std::make_shared<const HostModule>(compiler, text);
    promise.set_value(module);
    return module;
  } catch (...) {
    {
      const std::lock_guard lock(modules.mutex);
      modules.modules.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

std::size_t host_compiles() { return cache().compiles; }

}  // namespace packjit::host
