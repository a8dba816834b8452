#include "tests/api/fake_driver.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

namespace packjit::testing {

constexpr int kGpus = 2;

struct FakeDriver::State {
  struct Context {
    unsigned long long id = 0;  // 0: destroyed
    CUdevice gpu = 0;
  };
  struct FakeModule {
    unsigned long long context_id;
    bool alive = true;  // dead ones are kept, so that what still refers to them is found out
  };
  struct Function {
    FakeModule* module;
    unsigned long long context_id;
    int shared_allowed = 48 * 1024;
    bool code_loaded = false;
  };
  mutable std::mutex mutex;
  Context slots[8];
  Context primaries[kGpus];
  unsigned long long next_id = 1;
  std::map<CUstream, bool> captures;  // to whether it is still valid
  std::map<FakeModule*, std::unique_ptr<FakeModule>> modules;
  std::map<std::pair<FakeModule*, std::string>, std::unique_ptr<Function>> functions;
  std::map<void*, std::size_t> memory;  // to its size
  std::size_t most_memory = SIZE_MAX, in_use = 0;
  std::map<CUstream, int> launches;  // by stream
  int launches_of[kGpus] = {};
  Counts counts;
  std::atomic<bool> slow_attributes = false;
  int refused_images = 0;
};

namespace {

using State = FakeDriver::State;
State* state = nullptr;
thread_local std::vector<CUcontext> current_contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

State::Context* as_context(CUcontext context) { return reinterpret_cast<State::Context*>(context); }
CUcontext current() { return current_contexts.empty() ? nullptr : current_contexts.back(); }

/// What every call begins with.
std::unique_lock<std::mutex> enter() {
  std::unique_lock lock(state->mutex);
  ++state->counts.calls;
  return lock;
}
bool has_context() { return current() != nullptr && as_context(current())->id != 0; }
/// Loading and taking memory end every capture unless the thread says that it means no harm.
void unsafe_call() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  for (auto& [stream, valid] : state->captures) valid = false;
}
/// Copies from pageable memory and waiting end the capture of their stream.
CUresult uncapturable(CUstream stream) {
  const auto found = state->captures.find(stream);
  if (found == state->captures.end()) return CUDA_SUCCESS;
  found->second = false;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult fake_error_name(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}
CUresult fake_device_count(int* count) {
  *count = kGpus;
  return CUDA_SUCCESS;
}
CUresult fake_device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult fake_device_name(char* name, int length, CUdevice) {
  std::strncpy(name, "a fake GPU", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult fake_device_attribute(int* value, CUdevice_attribute attribute, CUdevice gpu) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9 + gpu;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 227 * 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      *value = 2'619'000;  // kHz
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    default:
      *value = 100;
  }
  return CUDA_SUCCESS;
}
CUresult fake_device_memory(std::size_t* bytes, CUdevice) {
  *bytes = std::size_t{1} << 34;
  return CUDA_SUCCESS;
}
CUresult fake_context_retain(CUcontext* context, CUdevice gpu) {
  const auto lock = enter();
  State::Context& primary = state->primaries[gpu];
  if (primary.id == 0) primary = {state->next_id++, gpu};
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}
CUresult fake_context_release(CUdevice) { return CUDA_SUCCESS; }
CUresult fake_context_push(CUcontext context) {
  const auto lock = enter();
  if (as_context(context)->id == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  current_contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult fake_context_pop(CUcontext* context) {
  const auto lock = enter();
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult fake_context_current(CUcontext* context) {
  const auto lock = enter();
  *context = current();
  return CUDA_SUCCESS;
}
CUresult fake_context_device(CUdevice* device) {
  const auto lock = enter();
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = as_context(current())->gpu;
  return CUDA_SUCCESS;
}
CUresult fake_context_id(CUcontext context, unsigned long long* id) {
  const auto lock = enter();
  *id = as_context(context)->id;
  return *id != 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
CUresult fake_stream_create(CUstream* stream, unsigned) {
  const auto lock = enter();
  unsafe_call();
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  constexpr std::uintptr_t kFirst = 0x100000;
  *stream = reinterpret_cast<CUstream>(kFirst + static_cast<std::uintptr_t>(state->counts.streams_made++));
  return CUDA_SUCCESS;
}
CUresult fake_stream_id(CUstream stream, unsigned long long* id) {
  const auto lock = enter();
  static thread_local char of_this_thread;
  *id = stream == CU_STREAM_PER_THREAD ? reinterpret_cast<std::uintptr_t>(&of_this_thread)
                                       : reinterpret_cast<std::uintptr_t>(stream);
  return CUDA_SUCCESS;
}
CUresult fake_stream_destroy(CUstream) {
  const auto lock = enter();
  unsafe_call();
  ++state->counts.streams_destroyed;
  return CUDA_SUCCESS;
}
CUresult fake_stream_synchronize(CUstream stream) {
  const auto lock = enter();
  return uncapturable(stream);
}
CUresult fake_capture_status(CUstream stream, CUstreamCaptureStatus* status) {
  const auto lock = enter();
  const auto found = state->captures.find(stream);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (found == state->captures.end()) {
    return stream == nullptr && !state->captures.empty() ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  }
  *status = found->second ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}
CUresult fake_capture_mode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}
CUresult fake_memory_allocate(CUdeviceptr* address, std::size_t bytes) {
  const auto lock = enter();
  unsafe_call();
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes > state->most_memory - state->in_use) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  state->memory.emplace(memory, bytes);
  state->in_use += bytes;
  ++state->counts.allocations;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
CUresult fake_memory_free(CUdeviceptr address) {
  const auto lock = enter();
  unsafe_call();
  void* memory = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  const auto found = state->memory.find(memory);
  if (found == state->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  state->in_use -= found->second;
  state->memory.erase(found);
  std::free(memory);
  ++state->counts.frees;
  return CUDA_SUCCESS;
}
CUresult fake_copy_to_device(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  const auto lock = enter();
  const CUresult captured = uncapturable(stream);
  if (captured == CUDA_SUCCESS)
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);  // NOLINT(performance-no-int-to-ptr)
  return captured;
}
CUresult fake_memory_set(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream) {
  const auto lock = enter();
  std::memset(reinterpret_cast<void*>(to), value, bytes);  // NOLINT(performance-no-int-to-ptr)
  return CUDA_SUCCESS;
}
CUresult fake_copy_to_host(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const auto lock = enter();
  const CUresult captured = uncapturable(stream);
  if (captured == CUDA_SUCCESS)
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);  // NOLINT(performance-no-int-to-ptr)
  return captured;
}
CUresult fake_module_load(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  const auto lock = enter();
  unsafe_call();
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (state->refused_images > 0) {
    --state->refused_images;
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto made = std::make_unique<State::FakeModule>(State::FakeModule{as_context(current())->id});
  *module = reinterpret_cast<CUmodule>(made.get());
  state->modules.emplace(made.get(), std::move(made));
  ++state->counts.modules_loaded;
  return CUDA_SUCCESS;
}
CUresult fake_module_unload(CUmodule module) {
  const auto lock = enter();
  unsafe_call();
  const auto found = state->modules.find(reinterpret_cast<State::FakeModule*>(module));
  if (found == state->modules.end() || !found->second->alive || !has_context() ||
      found->second->context_id != as_context(current())->id) {
    ++state->counts.stray_unloads;
    return CUDA_ERROR_INVALID_HANDLE;
  }
  found->second->alive = false;
  return CUDA_SUCCESS;
}
CUresult fake_module_function(CUfunction* function, CUmodule module, const char* name) {
  const auto lock = enter();
  auto* own = reinterpret_cast<State::FakeModule*>(module);
  if (!has_context() || own->context_id != as_context(current())->id) return CUDA_ERROR_INVALID_HANDLE;
  auto& made = state->functions[{own, name}];
  if (made == nullptr) made = std::make_unique<State::Function>(State::Function{own, own->context_id});
  *function = reinterpret_cast<CUfunction>(made.get());
  return CUDA_SUCCESS;
}
CUresult fake_function_attribute(int* value, CUfunction_attribute, CUfunction function) {
  const auto lock = enter();
  reinterpret_cast<State::Function*>(function)->code_loaded = true;
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult fake_function_set_attribute(CUfunction function, CUfunction_attribute, int value) {
  if (state->slow_attributes) std::this_thread::sleep_for(std::chrono::milliseconds(6));
  const auto lock = enter();
  int& allowed = reinterpret_cast<State::Function*>(function)->shared_allowed;
  if (value < allowed) ++state->counts.lowered;
  allowed = value;
  return CUDA_SUCCESS;
}
CUresult fake_launch(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  const auto lock = enter();
  auto* kernel = reinterpret_cast<State::Function*>(function);
  if (!has_context() || kernel->context_id != as_context(current())->id) return CUDA_ERROR_INVALID_HANDLE;
  if (static_cast<int>(config->sharedMemBytes) > kernel->shared_allowed) return CUDA_ERROR_INVALID_VALUE;
  ++state->launches[config->hStream];
  ++state->launches_of[as_context(current())->gpu];
  const auto capture = state->captures.find(config->hStream);
  if (capture == state->captures.end()) {
    kernel->code_loaded = true;
    ++state->counts.launches;
    return CUDA_SUCCESS;
  }
  if (!kernel->code_loaded) capture->second = false;  // loading code now would have to wait
  if (!capture->second) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  ++state->counts.recorded;
  return CUDA_SUCCESS;
}

}  // namespace

FakeDriver::FakeDriver() : state_(std::make_unique<State>()) {
  state = state_.get();
  current_contexts.clear();
  capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  driver_.version = {13, 0};
  driver_.error_name = fake_error_name;
  driver_.error_string = fake_error_name;
  driver_.device_count = fake_device_count;
  driver_.device_get = fake_device_get;
  driver_.device_name = fake_device_name;
  driver_.device_attribute = fake_device_attribute;
  driver_.device_memory = fake_device_memory;
  driver_.context_retain = fake_context_retain;
  driver_.context_release = fake_context_release;
  driver_.context_push = fake_context_push;
  driver_.context_pop = fake_context_pop;
  driver_.context_current = fake_context_current;
  driver_.context_device = fake_context_device;
  driver_.context_id = fake_context_id;
  driver_.stream_create = fake_stream_create;
  driver_.stream_id = fake_stream_id;
  driver_.stream_destroy = fake_stream_destroy;
  driver_.stream_synchronize = fake_stream_synchronize;
  driver_.capture_status = fake_capture_status;
  driver_.capture_mode = fake_capture_mode;
  driver_.memory_allocate = fake_memory_allocate;
  driver_.memory_free = fake_memory_free;
  driver_.copy_to_device = fake_copy_to_device;
  driver_.memory_set = fake_memory_set;
  driver_.copy_to_host = fake_copy_to_host;
  driver_.module_load = fake_module_load;
  driver_.module_unload = fake_module_unload;
  driver_.module_function = fake_module_function;
  driver_.function_attribute = fake_function_attribute;
  driver_.function_set_attribute = fake_function_set_attribute;
  driver_.launch_kernel = fake_launch;
}

FakeDriver::~FakeDriver() {
  for (const auto& [memory, bytes] : state_->memory) std::free(memory);  // of contexts that were destroyed
  state = nullptr;
}

CompileForGpu FakeDriver::compiler() {
  return [](const Source& source, const std::string& arch) {
    CompileResult images;
    images.ok = true;
    images.arch = arch;
    images.cubin = source.key;
    return std::make_shared<const CompileResult>(images);
  };
}

CUcontext FakeDriver::make_context(int slot, CUdevice gpu) {
  const std::lock_guard lock(state_->mutex);
  State::Context& context = state_->slots[slot];
  context = {state_->next_id++, gpu};
  return reinterpret_cast<CUcontext>(&context);
}

void FakeDriver::destroy_context(CUcontext context) {
  const std::lock_guard lock(state_->mutex);
  const unsigned long long id = std::exchange(as_context(context)->id, 0);
  for (auto& [address, module] : state_->modules) {
    if (module->context_id == id) module->alive = false;
  }
}

void FakeDriver::make_current(CUcontext context) {
  current_contexts.clear();
  if (context != nullptr) current_contexts.push_back(context);
}

void FakeDriver::reset_gpu() { destroy_context(reinterpret_cast<CUcontext>(&state_->primaries[0])); }

void FakeDriver::begin_capture(CUstream stream) {
  const std::lock_guard lock(state_->mutex);
  state_->captures[stream] = true;
}

void FakeDriver::change_attributes_slowly() { state_->slow_attributes = true; }

void FakeDriver::limit_memory(std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->most_memory = state_->in_use + bytes;
}

void FakeDriver::refuse_images(int count) {
  const std::lock_guard lock(state_->mutex);
  state_->refused_images = count;
}

bool FakeDriver::end_capture(CUstream stream) {
  const std::lock_guard lock(state_->mutex);
  const bool valid = state_->captures.at(stream);
  state_->captures.erase(stream);
  return valid;
}

int FakeDriver::launches_of(CUdevice gpu) const {
  const std::lock_guard lock(state_->mutex);
  return state_->launches_of[gpu];
}

int FakeDriver::launches_on(void* stream) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->launches.find(static_cast<CUstream>(stream));
  return found == state_->launches.end() ? 0 : found->second;
}

FakeDriver::Counts FakeDriver::counts() const {
  const std::lock_guard lock(state_->mutex);
  Counts counts = state_->counts;
  for (const auto& [address, module] : state_->modules) counts.modules_alive += module->alive ? 1 : 0;
  return counts;
}

}  // namespace packjit::testing
