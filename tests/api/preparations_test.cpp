// Preparation, compiling, workspaces and processes that were forked, with a driver that runs nothing but is strict.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/errors.hpp"
#include "tests/api/fake_gpu.hpp"

namespace packjit::testing {
namespace {

TEST_F(Sessions, PreparationOnAWorkerUsesTheCallersContext) {
  const DeviceHandle device = open(std::nullopt);
  CUcontext context = fake.make_context(2);
  FakeDriver::make_current(context);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  const packjit_shape shape = scan.shape();
  packjit_task* started = nullptr;
  ASSERT_DONE(packjit_operator_prepare_start(op.get(), kStream, PACKJIT_FORWARD, &shape, &started));
  const TaskHandle task(started);
  ASSERT_DONE(packjit_task_wait(task.get()));
  EXPECT_EQ(packjit_task_ready(task.get()), 1);
  EXPECT_EQ(fake.counts().modules_loaded, 1);
  const MapHandle map = map_from_positions(device, kPositions, kStream, 2, 16);
  EXPECT_DONE(scan.forward(op.get(), map.get(), kStream));
  EXPECT_EQ(fake.counts().modules_loaded, 1);
}

TEST_F(Sessions, APreparationThatCouldNotStartIsNotDoneLater) {
  std::atomic<int> compiles = 0;
  DeviceHandle device = open(0, [&](const Source& source, const std::string& arch) {
    ++compiles;
    return FakeDriver::compiler()(source, arch);
  });
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const packjit_shape shape = SmallScan(16).shape();
  packjit_task* started = nullptr;
  {
    pthread_attr_t usual, beyond;  // a stack that no address space holds
    ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
    beyond = usual;
    ASSERT_EQ(pthread_attr_setstacksize(&beyond, std::size_t{1} << 60), 0);
    ASSERT_EQ(pthread_setattr_default_np(&beyond), 0);
    EXPECT_EQ(packjit_operator_prepare_start(op.get(), kStream, PACKJIT_BACKWARD, &shape, &started),
              PACKJIT_ENVIRONMENT);
    EXPECT_EQ(started, nullptr);
    EXPECT_NE(std::string(packjit_last_error()).find("could not start a thread"), std::string::npos)
        << packjit_last_error();
    ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  }
  ASSERT_DONE(packjit_operator_prepare_start(op.get(), kStream, PACKJIT_FORWARD, &shape, &started));
  packjit_task_release(started);
  device.reset();          // waits for what was started
  EXPECT_EQ(compiles, 1);  // the forward
}

TEST_F(Sessions, AForkedProcessDoesNotWaitForTheOthersPreparation) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  const DeviceHandle device = open(0, [&](const Source& source, const std::string& arch) {
    released.wait();
    return FakeDriver::compiler()(source, arch);
  });
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const packjit_shape shape = SmallScan(16).shape();
  packjit_task* started = nullptr;
  ASSERT_DONE(packjit_operator_prepare_start(op.get(), kStream, PACKJIT_FORWARD, &shape, &started));
  const TaskHandle task(started);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool told = packjit_task_ready(started) == 1 && packjit_task_wait(started) == PACKJIT_ENVIRONMENT;
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(packjit_task_ready(task.get()), 0);
  release.set_value();
  EXPECT_DONE(packjit_task_wait(task.get()));
}

TEST_F(Sessions, TheDefaultStreamOfEachThreadHasItsOwnWorkspace) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const MapHandle map = map_from_positions(device, kPositions, kStream, 2, 16);
  const SmallScan scan(16);
  const auto allocations_of_a_call = [&] {
    const int before = fake.counts().allocations;
    EXPECT_DONE(scan.backward(op.get(), map.get(), CU_STREAM_PER_THREAD));
    return fake.counts().allocations - before;
  };
  EXPECT_EQ(allocations_of_a_call(), 1);
  EXPECT_EQ(allocations_of_a_call(), 0);
  std::thread([&] {
    EXPECT_EQ(allocations_of_a_call(), 1);
    EXPECT_EQ(allocations_of_a_call(), 0);
  }).join();
  EXPECT_EQ(allocations_of_a_call(), 0);
}

TEST_F(Sessions, AWorkspaceThatCannotDoubleTakesWhatIsNeeded) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const MapHandle map = map_from_positions(device, kPositions, kStream, 2, 16);
  const SmallScan small(16, 64), larger(16, 96), largest(16, 128);
  const auto bytes_of = [&](const SmallScan& scan) {
    const packjit_shape shape = scan.shape();
    std::size_t bytes = 0;
    EXPECT_DONE(packjit_operator_workspace_bytes(op.get(), PACKJIT_BACKWARD, &shape, &bytes));
    return bytes;
  };
  ASSERT_DONE(small.backward(op.get(), map.get(), kStream));
  ASSERT_GT(bytes_of(larger), bytes_of(small));
  ASSERT_LT(bytes_of(larger), 2 * bytes_of(small));
  fake.limit_memory(bytes_of(larger));
  EXPECT_DONE(larger.backward(op.get(), map.get(), kStream));
  EXPECT_EQ(largest.backward(op.get(), map.get(), kStream), PACKJIT_OUT_OF_MEMORY);
  EXPECT_NE(std::string(packjit_last_error()).find(fmt::format("could not take {} bytes", bytes_of(largest))),
            std::string::npos)
      << packjit_last_error();
}

TEST_F(Sessions, AWarmCallDoesNotWaitForACompile) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::promise<void> compiling;
  const DeviceHandle device = open(0, [&](const Source& source, const std::string& arch) {
    if (source.key.starts_with("ssm_pack_fwd")) {
      compiling.set_value();
      released.wait();
    }
    return FakeDriver::compiler()(source, arch);
  });
  const OperatorHandle conv_op = make_operator(device, SmallConvolution::options());
  const OperatorHandle scan_op = make_operator(device, SmallScan::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions);
  ASSERT_DONE(conv.run(conv_op.get(), map.get()));
  const SmallScan scan(16);
  const packjit_shape shape = scan.shape();
  packjit_task* started = nullptr;
  ASSERT_DONE(packjit_operator_prepare_start(scan_op.get(), kStream, PACKJIT_FORWARD, &shape, &started));
  const TaskHandle task(started);
  compiling.get_future().wait();
  auto warm = std::async(std::launch::async, [&] { return conv.run(conv_op.get(), map.get()); });
  EXPECT_EQ(warm.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(packjit_task_ready(task.get()), 0);
  release.set_value();
  EXPECT_DONE(packjit_task_wait(task.get()));
  EXPECT_EQ(warm.get(), PACKJIT_OK);
}

TEST_F(Sessions, ThreadsThatWantTheSameKernelCompileItOnce) {
  std::atomic<int> compiles = 0;
  const DeviceHandle device = open(0, [&](const Source& source, const std::string& arch) {
    ++compiles;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return FakeDriver::compiler()(source, arch);
  });
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  std::vector<std::thread> threads;
  threads.reserve(16);
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      SmallConvolution conv;
      const MapHandle map = map_from_positions(device, conv.positions);
      EXPECT_DONE(conv.run(op.get(), map.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(fake.counts().launches, 16);
}

TEST_F(Sessions, AFailedCompileIsNotKept) {
  bool broken = true;
  const DeviceHandle device = open(0, [&](const Source& source, const std::string& arch) {
    if (broken) throw EnvironmentError("no compiler today");
    return FakeDriver::compiler()(source, arch);
  });
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions);
  EXPECT_EQ(conv.run(op.get(), map.get()), PACKJIT_ENVIRONMENT);
  EXPECT_STREQ(packjit_last_error(), "no compiler today");
  broken = false;
  EXPECT_DONE(conv.run(op.get(), map.get()));
}

TEST_F(Sessions, K38_AForkedProcessIsToldSo) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions);
  ASSERT_DONE(conv.run(op.get(), map.get()));
  const pid_t child = fork();
  if (child == 0) {
    const bool told = conv.run(op.get(), map.get()) == PACKJIT_ENVIRONMENT &&
                      std::string(packjit_last_error()).find("forked") != std::string::npos;
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_DONE(conv.run(op.get(), map.get()));  // the parent goes on
}

}  // namespace
}  // namespace packjit::testing
