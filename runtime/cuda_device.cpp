#include "runtime/cuda_device.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <stdexcept>
#include <utility>

#include "runtime/compile_cache.hpp"
#include "runtime/cuda_context.hpp"
#include "runtime/cuda_launch.hpp"
#include "runtime/cuda_memory.hpp"
#include "runtime/cuda_module.hpp"
#include "runtime/errors.hpp"
#include "runtime/image_choice.hpp"

namespace packjit {

struct CudaDevice::State {
  State(int ordinal, CompileForGpu compile_generated)
      : context(std::make_shared<const CudaContext>(ordinal)),
        memory(*context),
        compile(std::move(compile_generated)) {}
  ~State() {
    try {
      const CudaContext::Current current(*context);
      modules.clear();
      memory.release_all();
    } catch (const std::exception&) {
      return;
    }
  }

  // Throws when a kernel failed since the last wait, naming what was launched.
  void wait(CUresult status) {
    if (status == CUDA_SUCCESS) status = context->driver().stream_synchronize(context->stream());
    std::vector<std::string> since = std::exchange(launched, {});
    if (status == CUDA_SUCCESS) return;
    if (since.empty()) throw DriverError(fmt::format("the GPU failed: {}", context->driver().describe(status)));
    throw DriverError(
        fmt::format("the GPU failed in kernel {}: {}", fmt::join(since, ", or "), context->driver().describe(status)));
  }
  // A stream that is being captured takes launches only; the driver would drop the whole capture.
  void refuse_in_capture(const std::string& what) const {
    if (!capturing) return;
    throw std::logic_error(
        fmt::format("while launches are captured, {} is not possible: run the work once before it is captured", what));
  }

  std::shared_ptr<const CudaContext> context;
  CudaMemory memory;
  CompileForGpu compile;                                         // of generated source
  std::map<std::string, std::shared_ptr<const Module>> modules;  // by generated key
  std::vector<std::string> launched;                             // kernels since the last wait
  bool capturing = false;
};

class CudaGraph {
 public:
  CudaGraph(std::shared_ptr<const CudaContext> context, CUgraphExec graph, std::vector<std::string> kernels)
      : context_(std::move(context)), graph_(graph), kernels_(std::move(kernels)) {}
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph() { context_->driver().graph_release(graph_); }
  [[nodiscard]] const CudaContext& context() const { return *context_; }
  [[nodiscard]] CUgraphExec graph() const { return graph_; }
  [[nodiscard]] const std::vector<std::string>& kernels() const { return kernels_; }

 private:
  std::shared_ptr<const CudaContext> context_;
  CUgraphExec graph_;
  std::vector<std::string> kernels_;
};

CudaDevice::CudaDevice(std::unique_ptr<State> state) : state_(std::move(state)) {}

CudaDevice::~CudaDevice() = default;

std::unique_ptr<CudaDevice> CudaDevice::open(int ordinal, CompileForGpu compile) {
  return std::unique_ptr<CudaDevice>(new CudaDevice(std::make_unique<State>(ordinal, std::move(compile))));
}

const DeviceInfo& CudaDevice::info() const { return state_->context->info(); }

void* CudaDevice::allocate(std::size_t bytes) {
  state_->refuse_in_capture("taking memory");
  const CudaContext::Current current(*state_->context);
  return state_->memory.allocate(bytes);
}

void CudaDevice::release(void* memory) noexcept {
  if (memory == nullptr || state_->capturing) return;
  try {
    const CudaContext::Current current(*state_->context);
    state_->memory.release(memory);
  } catch (const std::exception&) {
    return;  // the context is lost, and its memory with it
  }
}

void CudaDevice::write(void* to_device, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  state_->refuse_in_capture("copying to the GPU");
  const CudaContext::Current current(*state_->context);
  state_->wait(state_->context->driver().copy_to_device(to_address(to_device), from, bytes, state_->context->stream()));
}

void CudaDevice::read(void* to, const void* from_device, std::size_t bytes) {
  state_->refuse_in_capture("copying from the GPU");
  const CudaContext::Current current(*state_->context);
  CUresult status = CUDA_SUCCESS;
  if (bytes > 0) {
    status = state_->context->driver().copy_to_host(to, to_address(from_device), bytes, state_->context->stream());
  }
  state_->wait(status);
}

void CudaDevice::copy(void* to_device, const void* from_device, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaContext::Current current(*state_->context);
  const Driver& driver = state_->context->driver();
  driver.check(driver.copy_on_device(to_address(to_device), to_address(from_device), bytes, state_->context->stream()),
               "copy device memory");
}

void CudaDevice::fill(void* on_device, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaContext::Current current(*state_->context);
  const Driver& driver = state_->context->driver();
  driver.check(driver.memory_set(to_address(on_device), value, bytes, state_->context->stream()), "fill device memory");
}

void CudaDevice::check_guards() {
  state_->refuse_in_capture("reading guard zones");
  const CudaContext::Current current(*state_->context);
  state_->wait(CUDA_SUCCESS);
  state_->memory.check_guards();
}

std::shared_ptr<const Module> CudaDevice::load(const Spec& spec, const Config& config) {
  const std::string key = source_key(spec, config);
  const auto found = state_->modules.find(key);
  if (found != state_->modules.end()) return found->second;
  state_->refuse_in_capture("compiling a kernel");
  check_arch(config, info().arch);
  const auto images = state_->compile(generate(spec, config, Target::cuda), info().arch);
  const auto module = std::make_shared<const CudaModule>(state_->context, *images);
  state_->modules.emplace(key, module);
  return module;
}

std::shared_ptr<const Module> CudaDevice::load_text(const std::string& text) {
  state_->refuse_in_capture("compiling a kernel");
  const auto nvrtc = Nvrtc::shared();
  const std::string arch = arch_for_gpu(info().arch, nvrtc->archs(), nvrtc->version_text());
  const CachedCompile compiled = CompileCache::shared().get({"edited", text}, arch);
  if (!compiled.result->ok) throw std::invalid_argument(describe_failure(*compiled.result));
  return std::make_shared<const CudaModule>(state_->context, *compiled.result);
}

namespace {
const CudaModule& own_module(const Module& module, const CudaContext& context) {
  const auto* own = dynamic_cast<const CudaModule*>(&module);
  if (own == nullptr || !own->belongs_to(context)) {
    throw std::logic_error("a module can only be launched on the device that loaded it");
  }
  return *own;
}
}  // namespace

void CudaDevice::launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) {
  const CudaContext& context = *state_->context;
  const CudaContext::Current current(context);
  const CudaModule& own = own_module(module, context);
  if (!own.has_used(launch.entry, launch.shared_bytes)) state_->refuse_in_capture("loading kernel " + launch.entry);
  CUfunction function = own.function(launch.entry, launch.shared_bytes);
  const CUresult status = launch_kernel(context.driver(), function, context.stream(), launch, argument);
  if (status != CUDA_SUCCESS) {
    throw DriverError(describe_launch_failure(context.driver(), status, launch, context.info().name) +
                      (state_->launched.empty() ? "" : " (an earlier kernel may have failed)"));
  }
  std::vector<std::string>& names = state_->launched;
  if (std::find(names.begin(), names.end(), launch.entry) == names.end()) names.push_back(launch.entry);
}

void CudaDevice::synchronize() {
  state_->refuse_in_capture("waiting");
  const CudaContext::Current current(*state_->context);
  state_->wait(CUDA_SUCCESS);
}

std::shared_ptr<const CudaGraph> CudaDevice::capture(const std::function<void()>& work) {
  state_->refuse_in_capture("another capture");
  const CudaContext& context = *state_->context;
  const Driver& driver = context.driver();
  const CudaContext::Current current(context);
  std::vector<std::string> before = std::exchange(state_->launched, {});
  driver.check(driver.capture_begin(context.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin a capture");
  state_->capturing = true;
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  state_->capturing = false;
  const std::vector<std::string> kernels = std::exchange(state_->launched, std::move(before));
  CUgraph recorded = nullptr;
  const CUresult ended = driver.capture_end(context.stream(), &recorded);
  CUgraphExec graph = nullptr;
  CUresult made = ended;
  if (ended == CUDA_SUCCESS && !failure) made = driver.graph_instantiate(&graph, recorded, 0);
  if (recorded != nullptr) driver.graph_destroy(recorded);
  if (failure) std::rethrow_exception(failure);
  driver.check(made, "make a graph of captured launches");
  return std::make_shared<const CudaGraph>(state_->context, graph, kernels);
}

void CudaDevice::launch(const CudaGraph& graph) {
  state_->refuse_in_capture("running a graph");
  const CudaContext& context = *state_->context;
  if (&graph.context() != &context) throw std::logic_error("a graph can only run on the device that captured it");
  const CudaContext::Current current(context);
  context.driver().check(context.driver().graph_launch(graph.graph(), context.stream()), "launch a graph");
  std::vector<std::string>& names = state_->launched;
  for (const std::string& kernel : graph.kernels()) {
    if (std::find(names.begin(), names.end(), kernel) == names.end()) names.push_back(kernel);
  }
}

float CudaDevice::elapsed_ms(const std::function<void()>& work) {
  state_->refuse_in_capture("timing");
  const CudaContext& context = *state_->context;
  const Driver& driver = context.driver();
  const CudaContext::Current current(context);
  struct Event {
    explicit Event(const Driver& api) : driver(api) {
      driver.check(driver.event_create(&event, CU_EVENT_DEFAULT), "create an event");
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { driver.event_destroy(event); }
    const Driver& driver;
    CUevent event = nullptr;
  };
  const Event start(driver), stop(driver);
  driver.check(driver.event_record(start.event, context.stream()), "start timing");
  work();
  driver.check(driver.event_record(stop.event, context.stream()), "stop timing");
  state_->wait(driver.event_synchronize(stop.event));
  float milliseconds = 0;
  driver.check(driver.event_elapsed(&milliseconds, start.event, stop.event), "read a time");
  return milliseconds;
}

LoadedKernel CudaDevice::inspect(const Module& module, const KernelLaunch& launch) {
  const CudaContext& context = *state_->context;
  const Driver& driver = context.driver();
  const CudaContext::Current current(context);
  CUfunction function = own_module(module, context).function(launch.entry, launch.shared_bytes);
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    driver.check(driver.function_attribute(&value, which, function), "read an attribute of a kernel");
    return value;
  };
  LoadedKernel kernel;
  kernel.registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
  kernel.local_bytes = attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  kernel.shared_bytes = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  driver.check(driver.max_active_blocks(&kernel.blocks_per_multiprocessor, function, static_cast<int>(launch.block),
                                        launch.shared_bytes),
               "compute a kernel's occupancy");
  return kernel;
}

std::unique_ptr<Device> open_cuda_device(int ordinal) { return CudaDevice::open(ordinal); }

DriverSurvey survey_driver() {
  DriverSurvey survey;
  try {
    const Driver& driver = Driver::get();
    survey.found = true;
    survey.path = driver.file.path();
    survey.version = fmt::format("{}.{}", driver.version.major, driver.version.minor);
    int count = 0;
    driver.check(driver.device_count(&count), "count the GPUs");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice device = 0;
      driver.check(driver.device_get(&device, ordinal), "open a GPU");
      survey.gpus.push_back(describe_gpu(driver, device));
    }
    if (count == 0) survey.problem = "no GPU: the driver shows none; check `nvidia-smi` and CUDA_VISIBLE_DEVICES";
  } catch (const std::exception& error) {
    survey.problem = error.what();
  }
  return survey;
}

}  // namespace packjit
