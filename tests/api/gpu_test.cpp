// The interface on a real GPU: contexts, graphs, captures. Skipped where there is none.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "api/handles.hpp"
#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "checking/reference.hpp"
#include "checking/self_check.hpp"
#include "runtime/compile_cache.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/driver.hpp"
#include "tests/api/calls.hpp"
#include "tests/cache/cache_helpers.hpp"

namespace packjit::testing {
namespace {

using checking::Case;

const Driver& cuda() { return Driver::get(); }
void check(CUresult status, const char* action) { cuda().check(status, action); }

/// A context that the test makes and destroys, as an application would.
class OwnContext {
 public:
  explicit OwnContext(CUdevice gpu = 0) {
    CUresult (*create)(CUcontext*, unsigned, CUdevice) = nullptr;
    if (!cuda().file.load(create, "cuCtxCreate_v2")) throw std::runtime_error("the driver lacks cuCtxCreate_v2");
    check(create(&context_, 0, gpu), "create a context");
    CUcontext popped = nullptr;
    check(cuda().context_pop(&popped), "leave a new context");
  }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  ~OwnContext() {
    CUresult (*destroy)(CUcontext) = nullptr;
    if (cuda().file.load(destroy, "cuCtxDestroy_v2")) destroy(context_);
  }
  void enter() const { check(cuda().context_push(context_), "enter a context"); }
  static void leave() {
    CUcontext popped = nullptr;
    check(cuda().context_pop(&popped), "leave a context");
  }

 private:
  CUcontext context_ = nullptr;
};

/// A stream of the current context and tensors in its memory, by name. Memory is given back with the object.
class OnStream {
 public:
  /// On a stream of its own where none is given.
  explicit OnStream(CUstream given = nullptr) : given_(given != nullptr), stream_(given) {
    if (!given_) check(cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;
  ~OnStream() {
    cuda().stream_synchronize(stream_);
    for (const auto& [name, place] : places_) cuda().memory_free(place.address);
    if (!given_) cuda().stream_destroy(stream_);
  }
  [[nodiscard]] CUstream stream() const { return stream_; }
  void wait() const { check(cuda().stream_synchronize(stream_), "wait for a stream"); }

  /// Dense; the memory of a name that was given before is written again.
  void give(const std::string& name, const HostTensor& tensor, std::int32_t dtype) {
    Place& place = places_[name];
    if (place.address == 0) {
      check(cuda().memory_allocate(&place.address, std::max<std::size_t>(tensor.bytes.size(), 1)), "take memory");
      place.shape = tensor;
      place.view = {sizeof(packjit_tensor),
                    reinterpret_cast<void*>(place.address),
                    dtype,
                    0,
                    {},
                    {}};  // NOLINT(performance-no-int-to-ptr)
      std::int64_t next = 1;
      place.view.rank = static_cast<std::int32_t>(tensor.shape.size());
      for (std::size_t i = tensor.shape.size(); i-- > 0;) {
        place.view.shape[i] = tensor.shape[i];
        place.view.stride[i] = next;
        next *= tensor.shape[i];
      }
    }
    if (tensor.bytes.empty()) return;
    check(cuda().copy_to_device(place.address, tensor.bytes.data(), tensor.bytes.size(), stream_), "copy in");
    wait();
  }
  [[nodiscard]] HostTensor read(const std::string& name) const {
    const Place& place = places_.at(name);
    HostTensor tensor = place.shape;
    if (!tensor.bytes.empty()) {
      check(cuda().copy_to_host(tensor.bytes.data(), place.address, tensor.bytes.size(), stream_), "copy out");
    }
    wait();
    return tensor;
  }
  [[nodiscard]] const packjit_tensor* get(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &found->second.view;
  }

 private:
  struct Place {
    CUdeviceptr address = 0;
    HostTensor shape;
    packjit_tensor view{};
  };
  bool given_;
  CUstream stream_;
  std::map<std::string, Place> places_;
};

constexpr std::int64_t kSeqlen = 128, kDim = 64, kMostSequences = 32;

/// A scan over one row, cut into sequences of `length` tokens.
Case scan_case(Operator op, std::int64_t length, std::uint64_t seed = 1) {
  Case c;
  c.name = "one row";
  c.op = op;
  c.dim = kDim;
  c.seed = seed;
  std::vector<std::int64_t> lengths;
  for (std::int64_t at = 0; at < kSeqlen; at += length) lengths.push_back(std::min(length, kSeqlen - at));
  c.rows = {checking::row_of(lengths)};
  return c;
}

HostTensor positions_of(const Case& c) {
  const Boundaries boundaries = *checking::boundaries_of(c, Boundaries::Form::position_indices);
  return HostTensor::from_double(ElementType::int32, {1, kSeqlen},
                                 {boundaries.values.begin(), boundaries.values.end()});
}

packjit_shape scan_shape() {
  return {sizeof(packjit_shape), 1, kSeqlen, kDim, 1, kMostSequences, kSeqlen, PACKJIT_TOKEN_MAJOR, 0};
}

/// Forward and backward of a scan with a map that the GPU builds.
class Scan {
 public:
  explicit Scan(const DeviceHandle& device, CUstream stream = nullptr)
      : on(stream), op_(make_operator(device, options_of(scan_case(Operator::ssm_pack_bwd, 7)))) {
    const packjit_map_options options{
        sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, kSeqlen, kMostSequences, kSeqlen};
    packjit_map* map = nullptr;
    EXPECT_DONE(packjit_map_create(device.get(), on.stream(), &options, PACKJIT_INT32, &map));
    map_.reset(map);
    const Case c = scan_case(Operator::ssm_pack_bwd, 7);
    give(c);
    for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
      for (const auto& [name, values] : checking::compute_reference(with(c, op), checking::make_inputs(c)).outputs) {
        if (values.empty() || name == "dinitial_states" || name == "final_states") continue;
        packjit_tensor view{sizeof(view), nullptr, 0, 0, {}, {}};
        const packjit_shape shape = scan_shape();
        const std::int32_t direction = is_backward(op) ? PACKJIT_BACKWARD : PACKJIT_FORWARD;
        EXPECT_DONE(packjit_operator_describe(op_.get(), direction, &shape, name.c_str(), &view)) << name;
        HostTensor memory = HostTensor::zeros(view.dtype == PACKJIT_FP32 ? ElementType::fp32 : ElementType::bf16,
                                              {view.shape, view.shape + view.rank});
        on.give(name, memory, view.dtype);
        outputs_[op].push_back(name);
      }
    }
  }
  static Case with(Case c, Operator op) {
    c.op = op;
    return c;
  }
  void give(const Case& c) {
    for (const auto& [name, tensor] : checking::make_inputs(c)) on.give(name, tensor, c_dtype(tensor.type));
    on.give("positions", positions_of(c), PACKJIT_INT32);
  }
  packjit_status prepare() {
    const packjit_shape shape = scan_shape();
    return packjit_operator_prepare(op_.get(), on.stream(), PACKJIT_FORWARD + PACKJIT_BACKWARD, &shape);
  }
  packjit_status build() { return packjit_map_build(map_.get(), on.stream(), on.get("positions")); }
  packjit_status run(Operator op) {
    return call_operator(
        op, op_.get(), on.stream(), map_.get(), [&](const char* name) { return on.get(name); }, nullptr);
  }
  void launch_all() {
    EXPECT_DONE(build());
    EXPECT_DONE(run(Operator::ssm_pack_fwd));
    EXPECT_DONE(run(Operator::ssm_pack_bwd));
  }
  HostTensors outputs() {
    HostTensors all;
    for (const auto& [op, names] : outputs_) {
      for (const std::string& name : names) all[name] = on.read(name);
    }
    return all;
  }
  void release_map() { map_.reset(); }
  void expect_right(const Case& c) {
    EXPECT_DONE(packjit_map_check(map_.get(), on.stream()));
    const HostTensors inputs = checking::make_inputs(c);
    for (const auto& [op, names] : outputs_) {
      HostTensors of_op;
      for (const std::string& name : names) of_op[name] = on.read(name);
      const Case as_op = with(c, op);
      for (const auto& result : checking::compare_with_reference(checking::CheckKind::oracle, as_op, of_op,
                                                                 checking::compute_reference(as_op, inputs))) {
        EXPECT_TRUE(result.pass()) << checking::describe(result);
      }
    }
  }
  OnStream on;

 private:
  OperatorHandle op_;
  MapHandle map_;
  std::map<Operator, std::vector<std::string>> outputs_;
};

bool same_bits(const HostTensors& a, const HostTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.bytes == y.second.bytes;
  });
}

class ApiGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const DriverSurvey survey = survey_driver();
    if (survey.gpus.empty()) GTEST_SKIP() << survey.problem;
  }
  static DeviceHandle open(std::int32_t kind, std::int32_t ordinal = 0) {
    const packjit_device_options options{sizeof(options), kind, ordinal};
    packjit_device* device = nullptr;
    EXPECT_DONE(packjit_device_open(&options, &device));
    return DeviceHandle(device);
  }
  /// The primary context on this thread, for the test's own calls.
  struct Primary {
    explicit Primary(CUdevice gpu_ = 0) : gpu(gpu_) {
      check(cuda().context_retain(&context, gpu), "retain the primary context");
      check(cuda().context_push(context), "enter it");
    }
    Primary(const Primary&) = delete;
    Primary& operator=(const Primary&) = delete;
    ~Primary() {
      OwnContext::leave();
      cuda().context_release(gpu);
    }
    CUdevice gpu;
    CUcontext context = nullptr;
  };
  static CUgraphExec end_capture(CUstream stream) {
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
    check(cuda().capture_end(stream, &graph), "end a capture");
    check(cuda().graph_instantiate(&ready, graph, 0), "make a graph");
    cuda().graph_destroy(graph);
    return ready;
  }
};

TEST_F(ApiGpu, ForwardAndBackwardAreRight) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  Scan scan(device);
  scan.launch_all();
  scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
}

TEST_F(ApiGpu, K35_TwoContextsAtOnceGiveTheSameBits) {
  const OwnContext contexts[2];
  const DeviceHandle device = open(PACKJIT_CURRENT);
  HostTensors results[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      contexts[i].enter();
      {
        Scan scan(device);
        for (int repeat = 0; repeat < 50; ++repeat) scan.launch_all();
        results[i] = scan.outputs();
        scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
      }
      OwnContext::leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(results[0].empty());
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

class ApiTwoGpus : public ApiGpu {
 protected:
  void SetUp() override {
    const DriverSurvey survey = survey_driver();
    if (survey.gpus.size() < 2) {
      GTEST_SKIP() << (survey.gpus.empty() ? survey.problem : "needs two GPUs, and there is one");
    }
    if (survey.gpus[0].arch != survey.gpus[1].arch) {
      GTEST_SKIP() << "needs two GPUs of one architecture for the same bits, and there are " << survey.gpus[0].arch
                   << " and " << survey.gpus[1].arch;
    }
  }
  /// Forward and backward, 50 times. The device's context is current.
  static HostTensors run(const DeviceHandle& device) {
    Scan scan(device);
    for (int repeat = 0; repeat < 50; ++repeat) scan.launch_all();
    scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
    return scan.outputs();
  }
};

TEST_F(ApiTwoGpus, AtOnceInOneProcessTheyGiveTheBitsOfOne) {
  HostTensors alone;
  {
    const Primary primary;
    alone = run(open(PACKJIT_GPU));
  }
  EXPECT_FALSE(alone.empty());
  const DeviceHandle devices[] = {open(PACKJIT_GPU, 0), open(PACKJIT_GPU, 1)};
  HostTensors results[2];
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const Primary primary(i);
      results[i] = run(devices[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(same_bits(results[0], alone));
  EXPECT_TRUE(same_bits(results[1], alone));
}

TEST_F(ApiTwoGpus, OneHandleServesContextsOfBothAtOnce) {
  const OwnContext contexts[] = {OwnContext(0), OwnContext(1)};
  const DeviceHandle device = open(PACKJIT_CURRENT);
  HostTensors results[2];
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      contexts[i].enter();
      results[i] = run(device);
      OwnContext::leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(results[0].empty());
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

TEST_F(ApiGpu, K35_AContextDestroyedAndMadeAgainWorks) {
  const DeviceHandle device = open(PACKJIT_CURRENT);
  for (int round = 0; round < 4; ++round) {
    const OwnContext context;
    context.enter();
    {
      Scan scan(device);
      scan.launch_all();
      scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
    }
    OwnContext::leave();
  }
}

TEST_F(ApiGpu, AGraphReplayedAThousandTimesEqualsEagerCalls) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  Scan replayed(device), eager(device);
  ASSERT_DONE(replayed.prepare());
  check(cuda().capture_begin(replayed.on.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture");
  replayed.launch_all();
  CUgraphExec graph = end_capture(replayed.on.stream());
  constexpr int kBatches = 40;
  std::vector<Case> batches;
  std::vector<HostTensors> expected;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back(scan_case(Operator::ssm_pack_bwd, 4 + i % 20, static_cast<std::uint64_t>(i % 8 + 1)));
    eager.give(batches.back());
    eager.launch_all();
    expected.push_back(eager.outputs());
    eager.expect_right(batches.back());
  }
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto batch = static_cast<std::size_t>(i * 7 % kBatches);
    replayed.give(batches[batch]);
    check(cuda().graph_launch(graph, replayed.on.stream()), "launch a graph");
    different += same_bits(replayed.outputs(), expected[batch]) ? 0 : 1;
  }
  EXPECT_EQ(different, 0);
  cuda().graph_release(graph);
}

TEST_F(ApiGpu, K37_AMissWhileCapturingIsRefusedAndTheCaptureGoesOn) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  Scan scan(device);
  check(cuda().capture_begin(scan.on.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture");
  EXPECT_DONE(scan.build());
  EXPECT_EQ(scan.run(Operator::ssm_pack_fwd), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_EQ(scan.prepare(), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(cuda().capture_status(scan.on.stream(), &status), "ask for the capture");
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuda().graph_release(end_capture(scan.on.stream()));
  // The same calls, prepared, are captured; and the first capture has left nothing broken.
  ASSERT_DONE(scan.prepare());
  check(cuda().capture_begin(scan.on.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture");
  scan.launch_all();
  CUgraphExec graph = end_capture(scan.on.stream());
  check(cuda().graph_launch(graph, scan.on.stream()), "launch a graph");
  scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
  cuda().graph_release(graph);
}

TEST_F(ApiGpu, K37_PreparingOnAnotherThreadLeavesACaptureValid) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  Scan scan(device);
  ASSERT_DONE(scan.prepare());
  check(cuda().capture_begin(scan.on.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture");
  EXPECT_DONE(scan.build());
  std::thread([&] {
    packjit_operator_options options{};
    options.op = PACKJIT_CONV1D_PACK;
    const OperatorHandle other = make_operator(device, options);
    const packjit_shape shape = scan_shape();
    packjit_task* started = nullptr;
    CUstream own = nullptr;
    CUcontext popped = nullptr;
    check(cuda().context_push(primary.context), "enter the context");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda().capture_mode(&mode);
    check(cuda().stream_create(&own, CU_STREAM_NON_BLOCKING), "create a stream");
    EXPECT_DONE(packjit_operator_prepare_start(other.get(), own, PACKJIT_FORWARD + PACKJIT_BACKWARD, &shape, &started));
    const TaskHandle task(started);
    EXPECT_DONE(packjit_task_wait(task.get()));
    cuda().context_pop(&popped);
  }).join();
  EXPECT_DONE(scan.run(Operator::ssm_pack_fwd));
  EXPECT_DONE(scan.run(Operator::ssm_pack_bwd));
  CUgraphExec graph = end_capture(scan.on.stream());
  check(cuda().graph_launch(graph, scan.on.stream()), "launch a graph");
  scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
  cuda().graph_release(graph);
}

TEST_F(ApiGpu, AMapReleasedInACaptureLeavesItValidAndItsMemoryToTheGraph) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  Scan scan(device), eager(device);
  eager.launch_all();
  ASSERT_DONE(scan.prepare());
  MapHandle unused = map_from_positions(device, {0, 1, 2, 3}, scan.on.stream());
  check(cuda().capture_begin(scan.on.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture");
  scan.launch_all();
  unused.reset();
  scan.release_map();
  CUgraphExec graph = end_capture(scan.on.stream());
  check(cuda().graph_launch(graph, scan.on.stream()), "launch a graph");
  EXPECT_TRUE(same_bits(scan.outputs(), eager.outputs()));
  cuda().graph_release(graph);
}

TEST_F(ApiGpu, StreamsAtOnceHaveWorkspacesOfTheirOwn) {
  const Primary primary;
  const DeviceHandle device = open(PACKJIT_GPU);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    // The default stream of a thread has the same handle in all of them.
    threads.emplace_back([&, stream = i % 2 == 0 ? nullptr : CU_STREAM_PER_THREAD] {
      check(cuda().context_push(primary.context), "enter the context");
      {
        Scan scan(device, stream);
        scan.launch_all();
        const HostTensors first = scan.outputs();
        for (int repeat = 0; repeat < 100; ++repeat) {
          scan.launch_all();
          wrong += same_bits(scan.outputs(), first) ? 0 : 1;
        }
        scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
      }
      OwnContext::leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

/// A device whose self-checks are counted and remembered in a folder, as those of one process.
struct CheckedDevice {
  explicit CheckedDevice(const std::string& folder, CompileForGpu compile = compile_for_gpu)
      : memory(nvrtc_compiler(Nvrtc::shared()), test::open_disk(posix_file_system(), records, system_clock(), folder),
               records.callback()),
        device(new packjit_device(
            api::cuda_backend(cuda(), 0, std::move(compile),
                              {[this](Device& on, const Spec& spec, const Config& config) {
                                 ++checks;
                                 checking::self_check(on, spec, config);
                               },
                               [this](const CheckRecord& record) { return memory.has_passed(record); },
                               [this](const CheckRecord& record) { memory.remember(record); }}))) {}
  test::Records records;
  CompileCache memory;
  std::atomic<int> checks = 0;
  DeviceHandle device;
};

class Folder {
 public:
  Folder() {
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path = ::testing::TempDir() + "packjit-checks-XXXXXX";
};

TEST_F(ApiGpu, TheFirstUseIsCheckedAndTheNextProcessRemembers) {
  const Primary primary;
  const Folder folder;
  {
    CheckedDevice first(folder.path);
    Scan scan(first.device);  // its map is a kernel too
    ASSERT_DONE(scan.prepare());
    EXPECT_EQ(first.checks, 3);
    scan.launch_all();
    scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
    EXPECT_EQ(first.checks, 3);
  }
  CheckedDevice second(folder.path);
  Scan scan(second.device);
  ASSERT_DONE(scan.prepare());
  scan.launch_all();
  scan.expect_right(scan_case(Operator::ssm_pack_bwd, 7));
  EXPECT_EQ(second.checks, 0);
  EXPECT_TRUE(second.records.warnings().empty());
}

TEST_F(ApiGpu, AKernelThatComputesSomethingElseIsRefused) {
  const Primary primary;
  const Folder folder;
  int planted = 0;
  CheckedDevice checked(folder.path, [&](const Source& source, const std::string& arch) {
    Source wrong = source;
    const std::string right = "y[v] = silu(y[v]);";
    if (const std::size_t at = wrong.text.find(right); at != std::string::npos) {
      wrong.text.replace(at, right.size(), "y[v] = 1.02f * silu(y[v]);");
      ++planted;
    }
    return compile_for_gpu(wrong, arch);
  });
  packjit_operator_options options{};
  options.op = PACKJIT_CONV1D_PACK;
  const OperatorHandle op = make_operator(checked.device, options);
  const packjit_shape shape = scan_shape();
  EXPECT_EQ(packjit_operator_prepare(op.get(), nullptr, PACKJIT_FORWARD, &shape), PACKJIT_CHECK_FAILED);
  const std::string message = packjit_last_error();
  ASSERT_EQ(planted, 1);
  for (const char* part : {"the self-check of kernel conv1d_pack_fwd ",
                           "failed, so it is not used: conv1d_pack_fwd "
                           "bf16 out: relative error ",
                           " against a bound of 4.0e-03"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace packjit::testing
