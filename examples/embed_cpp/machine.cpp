#include "machine.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

/// A function of libcuda by its name. All take simple types here and give 0 where they succeed.
template <typename... Arguments>
void cuda(const char* name, Arguments... arguments) {
  static void* const kLibrary = dlopen("libcuda.so.1", RTLD_NOW);
  void* function = kLibrary != nullptr ? dlsym(kLibrary, name) : nullptr;
  const int status = function != nullptr ? reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) : -1;
  if (status == 0) return;
  std::fprintf(stderr, "%s failed with CUDA error %d\n", name, status);
  std::exit(1);
}

}  // namespace

Machine::Machine(bool gpu) {
  if (!gpu) return;
  cuda("cuInit", 0U);
  cuda("cuDevicePrimaryCtxRetain", &context_, 0);
  make_current();
}

void Machine::make_current() const {
  if (context_ != nullptr) cuda("cuCtxSetCurrent", context_);
}

void* Machine::make_stream() const {
  void* stream = nullptr;
  if (context_ != nullptr) cuda("cuStreamCreate", &stream, 1U /* CU_STREAM_NON_BLOCKING */);
  return stream;
}

void* Machine::allocate(std::size_t bytes) const {
  void* memory = nullptr;
  if (context_ != nullptr) {
    cuda("cuMemAlloc_v2", &memory, bytes);
  } else {
    memory = std::calloc(bytes, 1);
  }
  return memory;
}

void Machine::copy_in(void* stream, void* to, const void* from, std::size_t bytes) const {
  if (context_ == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  cuda("cuMemcpyHtoDAsync_v2", to, from, bytes, stream);
  cuda("cuStreamSynchronize", stream);
}

void Machine::copy_out(void* stream, void* to, const void* from, std::size_t bytes) const {
  if (context_ == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  cuda("cuMemcpyDtoHAsync_v2", to, from, bytes, stream);
  cuda("cuStreamSynchronize", stream);
}

std::function<void()> Machine::record(void* stream, const std::function<void()>& work) const {
  if (context_ == nullptr) return work;
  void* graph = nullptr;
  void* ready = nullptr;
  cuda("cuStreamBeginCapture_v2", stream, 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */);
  work();
  cuda("cuStreamEndCapture", stream, &graph);
  cuda("cuGraphInstantiateWithFlags", &ready, graph, 0ULL);
  cuda("cuGraphDestroy", graph);
  return [ready, stream] { cuda("cuGraphLaunch", ready, stream); };
}
