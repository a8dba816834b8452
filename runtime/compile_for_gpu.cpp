#include "runtime/compile_for_gpu.hpp"

#include <future>
#include <map>
#include <mutex>
#include <stdexcept>

#include "runtime/image_choice.hpp"

namespace packjit {
namespace {

using Images = std::shared_ptr<const CompileResult>;
struct Compiled {
  std::mutex mutex;
  std::map<std::string, std::shared_future<Images>> images;  // by architecture and key
};

// Never destroyed: threads may still compile while the process ends.
Compiled& compiled() {
  static auto* const kCompiled = new Compiled;
  return *kCompiled;
}

Images compile_now(const Source& source, const std::string& arch) {
  CompileResult images = compile(*Nvrtc::shared(), source.text, arch);
  if (!images.ok) throw std::logic_error("generated source does not compile. " + describe_failure(images));
  return std::make_shared<const CompileResult>(std::move(images));
}

}  // namespace

Images compile_for_gpu(const Source& source, const std::string& gpu_arch) {
  const auto nvrtc = Nvrtc::shared();
  const std::string arch = arch_for_gpu(gpu_arch, nvrtc->archs(), nvrtc->version_text());
  const std::string key = arch + " " + source.key;
  Compiled& all = compiled();
  std::promise<Images> promise;
  std::shared_future<Images> others;
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.images.find(key); found != all.images.end()) {
      others = found->second;
    } else {
      all.images.emplace(key, promise.get_future().share());
    }
  }
  if (others.valid()) return others.get();
  try {
    Images images = compile_now(source, arch);
    promise.set_value(images);
    return images;
  } catch (...) {
    {
      const std::lock_guard lock(all.mutex);
      all.images.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

}  // namespace packjit
