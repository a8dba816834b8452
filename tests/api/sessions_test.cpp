// Contexts, shared memory and what a warm call costs, with a driver that runs nothing but is strict.
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/context_module.hpp"
#include "tests/api/fake_gpu.hpp"

namespace packjit::testing {
namespace {

/// 100 calls with each context, on as many threads at once.
void call_in_each(std::span<const CUcontext> contexts, const DeviceHandle& device, const OperatorHandle& op) {
  std::vector<std::thread> threads;
  threads.reserve(contexts.size());
  for (CUcontext context : contexts) {
    threads.emplace_back([&, context] {
      FakeDriver::make_current(context);
      SmallConvolution conv;
      const MapHandle map = map_from_positions(device, conv.positions);
      for (int i = 0; i < 100; ++i) EXPECT_DONE(conv.run(op.get(), map.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Sessions, K35_AContextAtTheSameAddressIsAnotherContext) {
  {
    const DeviceHandle device = open(std::nullopt);
    const OperatorHandle op = make_operator(device, SmallConvolution::options());
    SmallConvolution conv;
    for (int round = 1; round <= 3; ++round) {
      CUcontext context = fake.make_context(1);
      FakeDriver::make_current(context);
      {
        const MapHandle map = map_from_positions(device, conv.positions);
        EXPECT_DONE(conv.run(op.get(), map.get()));
        EXPECT_DONE(conv.run(op.get(), map.get()));
      }
      EXPECT_EQ(fake.counts().modules_loaded, round);  // once a context
      fake.destroy_context(context);
    }
    EXPECT_EQ(fake.counts().launches, 6);
    FakeDriver::make_current(fake.make_context(1));
  }
  // What was loaded in contexts that are gone is not unloaded in the one that has their address now.
  EXPECT_EQ(fake.counts().stray_unloads, 0);
}

TEST_F(Sessions, K35_TwoContextsHaveKernelsOfTheirOwn) {
  const DeviceHandle device = open(std::nullopt);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  std::vector<CUcontext> contexts = {fake.make_context(1), fake.make_context(2)};
  call_in_each(contexts, device, op);
  EXPECT_EQ(fake.counts().modules_loaded, 2);
  EXPECT_EQ(fake.counts().launches, 200);
}

/// Compiles as the fake does, and notes for which architectures.
struct Compiled {
  CompileForGpu compiler() {
    return [this](const Source& source, const std::string& arch) {
      {
        const std::lock_guard lock(mutex);
        archs.push_back(arch);
      }
      return FakeDriver::compiler()(source, arch);
    };
  }
  /// Sorted.
  std::vector<std::string> for_archs() {
    std::ranges::sort(archs);
    return archs;
  }
  std::mutex mutex;
  std::vector<std::string> archs;
};
const std::vector<std::string> kBothArchs = {"sm_100", "sm_90"};

TEST_F(Sessions, TwoGpusAtOnceHaveContextsAndKernelsOfTheirOwn) {
  Compiled compiled;
  const DeviceHandle devices[] = {open(0, compiled.compiler()), open(1, compiled.compiler())};
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (const DeviceHandle& device : devices) {
    threads.emplace_back([&device] {  // no context is current: a handle enters its own
      const OperatorHandle op = make_operator(device, SmallConvolution::options());
      SmallConvolution conv;
      const MapHandle map = map_from_positions(device, conv.positions);
      for (int i = 0; i < 100; ++i) EXPECT_DONE(conv.run(op.get(), map.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake.launches_of(0), 100);
  EXPECT_EQ(fake.launches_of(1), 100);
  EXPECT_EQ(fake.counts().modules_loaded, 2);
  EXPECT_EQ(compiled.for_archs(), kBothArchs);
}

TEST_F(Sessions, OneHandleServesContextsOfTwoGpusAtOnce) {
  Compiled compiled;
  const DeviceHandle device = open(std::nullopt, compiled.compiler());
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  std::vector<CUcontext> contexts = {fake.make_context(1, 0), fake.make_context(2, 1)};
  call_in_each(contexts, device, op);
  EXPECT_EQ(fake.launches_of(0), 100);
  EXPECT_EQ(fake.launches_of(1), 100);
  EXPECT_EQ(compiled.for_archs(), kBothArchs);
  // On one thread, one GPU after the other.
  for (CUcontext context : contexts) {
    FakeDriver::make_current(context);
    SmallConvolution conv;
    const MapHandle map = map_from_positions(device, conv.positions);
    EXPECT_DONE(conv.run(op.get(), map.get()));
  }
  EXPECT_EQ(fake.launches_of(1), 101);
  EXPECT_EQ(fake.counts().modules_loaded, 2);
}

TEST_F(Sessions, AMapOfAnotherGpuIsRefused) {
  const DeviceHandle devices[] = {open(0), open(1)};
  const OperatorHandle op = make_operator(devices[0], SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(devices[1], conv.positions);
  EXPECT_EQ(conv.run(op.get(), map.get()), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(fake.launches_of(0) + fake.launches_of(1), 0);
}

TEST_F(Sessions, K35_AResetGpuIsEnteredAgain) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle before = map_from_positions(device, conv.positions);
  EXPECT_DONE(conv.run(op.get(), before.get()));
  fake.reset_gpu();
  // The map's memory went with the context.
  EXPECT_EQ(conv.run(op.get(), before.get()), PACKJIT_BAD_ARGUMENT);
  const MapHandle after = map_from_positions(device, conv.positions);
  EXPECT_DONE(conv.run(op.get(), after.get()));
  EXPECT_EQ(fake.counts().modules_loaded, 2);
}

TEST_F(Sessions, WithoutAContextTheMessageSaysWhatToDo) {
  const DeviceHandle device = open(std::nullopt);
  packjit_device_info info{};
  info.struct_size = sizeof(info);
  FakeDriver::make_current(nullptr);
  EXPECT_EQ(packjit_device_get_info(device.get(), &info), PACKJIT_ENVIRONMENT);
  EXPECT_NE(std::string(packjit_last_error()).find("cuCtxSetCurrent"), std::string::npos);
}

TEST_F(Sessions, TheContextBeforeComesBack) {
  const DeviceHandle device = open(0);
  CUcontext mine = fake.make_context(3);
  FakeDriver::make_current(mine);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions);
  EXPECT_DONE(conv.run(op.get(), map.get()));
  EXPECT_NE(conv.run(nullptr, map.get()), PACKJIT_OK);
  CUcontext now = nullptr;
  fake.driver().context_current(&now);
  EXPECT_EQ(now, mine);
}

TEST_F(Sessions, K36_SharedMemoryIsOnlyEverRaised) {
  CUcontext context = fake.make_context(1);
  FakeDriver::make_current(context);
  DeviceInfo gpu;
  gpu.shared_bytes_per_block = std::int64_t{227} * 1024;
  CompileResult images;
  const ContextModule module(fake.driver(), gpu, 1, images);
  const std::vector<KernelLaunch> small = {{"kernel", 1, 1, 128, 60 * 1024}};
  const std::vector<KernelLaunch> large = {{"kernel", 1, 1, 128, 200 * 1024}};
  std::vector<std::thread> threads;
  for (const auto* launches : {&small, &large, &small, &large}) {
    threads.emplace_back([&, launches] {
      FakeDriver::make_current(context);
      for (int i = 0; i < 200; ++i) module.resolve(*launches);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake.counts().lowered, 0);
  EXPECT_NE(module.function(small[0]), nullptr);
  EXPECT_NE(module.function(large[0]), nullptr);
  const std::vector<KernelLaunch> beyond = {{"kernel", 1, 1, 128, 300 * 1024}};
  EXPECT_THROW(module.resolve(beyond), std::invalid_argument);
  EXPECT_EQ(module.function(beyond[0]), nullptr);
}

TEST_F(Sessions, K36_ASmallLaunchThatComesWhileALargeOneIsMadeReadyDoesNotLowerIt) {
  CUcontext context = fake.make_context(1);
  FakeDriver::make_current(context);
  DeviceInfo gpu;
  gpu.shared_bytes_per_block = std::int64_t{227} * 1024;
  const ContextModule module(fake.driver(), gpu, 1, CompileResult());
  fake.change_attributes_slowly();
  for (int round = 0; round < 10; ++round) {
    const std::vector<KernelLaunch> large = {{"kernel" + std::to_string(round), 1, 1, 128, 200 * 1024}};
    std::vector<KernelLaunch> small = large;
    small[0].shared_bytes = 60 * 1024;
    const auto resolve = [&](const std::vector<KernelLaunch>& launches) {
      FakeDriver::make_current(context);
      module.resolve(launches);
    };
    std::thread first(resolve, large);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::thread second(resolve, small);
    first.join();
    second.join();
    EXPECT_NE(module.function(large[0]), nullptr);
  }
  EXPECT_EQ(fake.counts().lowered, 0);
}

TEST_F(Sessions, K33_RefusedImagesFallBackThenTheMessageSaysWhatIsBehind) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions);
  fake.refuse_images(2);  // the cubin and the PTX
  EXPECT_EQ(conv.run(op.get(), map.get()), PACKJIT_ENVIRONMENT);
  const std::string message = packjit_last_error();
  EXPECT_TRUE(message.find("a fake GPU") != std::string::npos || message.find("NVRTC") != std::string::npos) << message;
  fake.refuse_images(1);
  EXPECT_DONE(conv.run(op.get(), map.get()));
}

TEST_F(Sessions, EverythingIsGivenBack) {
  {
    const DeviceHandle device = open(0);
    const OperatorHandle op = make_operator(device, SmallScan::options());
    const SmallScan scan(16);
    const MapHandle map = map_from_positions(device, kPositions, kStream);
    EXPECT_DONE(scan.forward(op.get(), map.get(), kStream));
    EXPECT_DONE(scan.backward(op.get(), map.get(), kStream));
  }
  EXPECT_EQ(fake.counts().modules_loaded, 2);
  EXPECT_EQ(fake.counts().modules_alive, 0);
  EXPECT_EQ(fake.counts().stray_unloads, 0);
  EXPECT_EQ(fake.counts().frees, fake.counts().allocations);
}

TEST(WarmCalls, MakeNoSystemCall) {
#if defined(PACKJIT_SANITIZE)
  GTEST_SKIP() << "sanitizers make system calls of their own";
#endif
  const pid_t child = fork();
  if (child == 0) {
    FakeDriver fake;
    packjit_device device(api::cuda_backend(fake.driver(), 0, FakeDriver::compiler()));
    packjit_operator_options options = SmallScan::options();
    options.struct_size = sizeof(options);
    packjit_operator* op = nullptr;
    packjit_operator_create(&device, &options, &op);
    const SmallScan scan(16);
    const packjit_map_options map_options{sizeof(map_options), PACKJIT_ROWS, PACKJIT_POSITIONS, 1, 16, 0, 0};
    packjit_map* map = nullptr;
    packjit_map_from_host(&device, kStream, &map_options, nullptr, &map);
    for (int i = 0; i < 3; ++i) {
      scan.forward(op, map, kStream);
      scan.backward(op, map, kStream);
    }
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(77);
    // From here on every system call but read, write and exit ends the process.
    int failures = 0;
    for (int i = 0; i < 1000; ++i) {
      failures += scan.forward(op, map, kStream) != PACKJIT_OK ? 1 : 0;
      failures += scan.backward(op, map, kStream) != PACKJIT_OK ? 1 : 0;
    }
    syscall(SYS_exit, failures == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not to be had here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "ended with " << status;
}

TEST_F(Sessions, AWarmCallCostsLittle) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  const MapHandle map = map_from_positions(device, kPositions, kStream);
  const auto nanoseconds_of = [&](auto call) {
    constexpr int kRounds = 20, kCallsARound = 1000;
    EXPECT_DONE(call());
    double least = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      const std::clock_t start = std::clock();  // the processor's time: others may be busy on this machine
      for (int i = 0; i < kCallsARound; ++i) call();
      least = std::min(least, 1e9 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / kCallsARound);
    }
    return least;
  };
  const int before = fake.counts().calls;
  const double forward = nanoseconds_of([&] { return scan.forward(op.get(), map.get(), kStream); });
  EXPECT_LT(fake.counts().calls - before, 20001 * 8);  // of the driver, for one launch
  const double backward = nanoseconds_of([&] { return scan.backward(op.get(), map.get(), kStream); });
  RecordProperty("forward_ns", static_cast<int>(forward));
  RecordProperty("backward_ns", static_cast<int>(backward));
  std::printf("host time of a warm call, launches left out: forward %.0f ns, backward %.0f ns\n", forward, backward);
#ifdef __SANITIZE_THREAD__
  constexpr double kWatched = 5;  // each access to memory is looked at
#else
  constexpr double kWatched = 1;
#endif
  EXPECT_LT(forward, kWatched * 20000);  // a call that generates or checks anew takes far longer
  EXPECT_LT(backward, kWatched * 40000);
}

}  // namespace
}  // namespace packjit::testing
