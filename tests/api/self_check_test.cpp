// Self-checks of kernels on their first use: when they run, what is remembered where, what a failure does. With a
// driver that runs nothing, so that the check itself is one of the test's own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "api/handles.hpp"
#include "api/self_check.hpp"
#include "runtime/compile_cache.hpp"
#include "runtime/errors.hpp"
#include "tests/api/fake_driver.hpp"
#include "tests/api/handles.hpp"
#include "tests/cache/cache_helpers.hpp"

namespace packjit::testing {
namespace {

namespace fs = std::filesystem;

void* const kStream = reinterpret_cast<void*>(0x1000);       // NOLINT(performance-no-int-to-ptr)
void* const kOtherStream = reinterpret_cast<void*>(0x2000);  // NOLINT(performance-no-int-to-ptr)

/// What a real check does as far as the driver sees it.
void launch_once(Device& device, const Spec& spec, const Config& config) {
  const KernelLaunch launch{"a_kernel", 1, 1, 32};
  const std::byte argument[8]{};
  device.launch(*device.load(spec, config), launch, argument);
}

class SelfChecks : public ::testing::Test {
 public:
  SelfChecks() {
    std::string name = ::testing::TempDir() + "packjit-checks-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder = name;
  }
  ~SelfChecks() override {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  SelfChecks(const SelfChecks&) = delete;
  SelfChecks& operator=(const SelfChecks&) = delete;

  /// What one process remembers, with the folder behind it.
  std::unique_ptr<CompileCache> memory() {
    return std::make_unique<CompileCache>(
        compiler.compiler(), test::open_disk(posix_file_system(), records, system_clock(), folder / "cache"),
        records.callback());
  }
  SelfCheck check_with(CompileCache& remembered) {
    return {[this](Device& device, const Spec& spec, const Config& config) {
              ++checks;
              launch_once(device, spec, config);
            },
            [this, &remembered](const CheckRecord& record) {
              ++questions;
              return remembered.has_passed(record);
            },
            [&remembered](const CheckRecord& record) { remembered.remember(record); }};
  }
  DeviceHandle open(SelfCheck check, std::optional<int> ordinal = 0) {
    return DeviceHandle(
        new packjit_device(api::cuda_backend(fake.driver(), ordinal, FakeDriver::compiler(), std::move(check))));
  }
  /// One convolution on `kStream`.
  static packjit_status run(const DeviceHandle& device) {
    const OperatorHandle op = make_operator(device, SmallConvolution::options());
    SmallConvolution conv;
    const MapHandle map = map_from_positions(device, conv.positions, kStream);
    return conv.run(op.get(), map.get(), kStream);
  }
  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& file : fs::directory_iterator(folder / "cache")) found.push_back(file.path());
    return found;
  }

  fs::path folder;
  FakeDriver fake;
  test::Records records;
  test::CountingCompiler compiler;
  std::atomic<int> checks = 0, questions = 0;
};

TEST_F(SelfChecks, OnceAKernelAndNeverOnTheCallersStream) {
  const auto remembered = memory();
  const DeviceHandle device = open(check_with(*remembered));
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions, kStream);
  for (int i = 0; i < 10; ++i) EXPECT_DONE(conv.run(op.get(), map.get(), kStream));
  EXPECT_EQ(checks, 1);
  EXPECT_EQ(questions, 1);  // a warm call does not even ask
  EXPECT_EQ(fake.launches_on(kStream), 10);
  EXPECT_EQ(fake.counts().launches, 11);
  EXPECT_EQ(fake.counts().streams_made, 1);
  EXPECT_EQ(fake.counts().streams_destroyed, 1);
}

TEST_F(SelfChecks, OnceForAllContextsAndDevicesOfAProcess) {
  const auto remembered = memory();
  for (int slot = 1; slot <= 2; ++slot) {
    const DeviceHandle device = open(check_with(*remembered), std::nullopt);
    FakeDriver::make_current(fake.make_context(slot));
    EXPECT_DONE(run(device));
  }
  EXPECT_EQ(checks, 1);
}

TEST_F(SelfChecks, RememberedForOtherProcesses) {
  const auto in_child = [&] {
    const pid_t child = fork();
    if (child == 0) {
      FakeDriver::make_current(nullptr);
      const auto remembered = memory();
      const DeviceHandle device = open(check_with(*remembered));
      _exit(run(device) == PACKJIT_OK ? checks.load() : 90);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(in_child(), 1);
  ASSERT_EQ(files().size(), 1U);
  EXPECT_EQ(files()[0].extension(), ".checked");
  EXPECT_EQ(in_child(), 0);
  // Damage is one more check, which repairs it.
  std::ofstream(files()[0], std::ios::app) << "x";
  EXPECT_EQ(in_child(), 1);
  EXPECT_EQ(in_child(), 0);
}

TEST_F(SelfChecks, AnotherDriverIsAnotherCheck) {
  const auto remembered = memory();
  EXPECT_DONE(run(open(check_with(*remembered))));
  Driver newer = fake.driver();
  newer.version = {13, 1};
  const DeviceHandle device(
      new packjit_device(api::cuda_backend(newer, 0, FakeDriver::compiler(), check_with(*remembered))));
  EXPECT_DONE(run(device));
  EXPECT_EQ(checks, 2);
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(SelfChecks, AKernelThatFailsIsNeverGivenOut) {
  const auto remembered = memory();
  SelfCheck check = check_with(*remembered);
  bool wrong = true;
  check.run = [&](Device& device, const Spec& spec, const Config& config) {
    ++checks;
    launch_once(device, spec, config);
    if (wrong) throw CheckFailed("conv1d_pack_fwd fp32 out: relative error 3.000e-01 against a bound of 1.0e-05");
  };
  const DeviceHandle device = open(std::move(check));
  EXPECT_EQ(run(device), PACKJIT_CHECK_FAILED);
  const std::string message = packjit_last_error();
  for (const char* part :
       {"the self-check of kernel conv1d_pack_fwd ", "on a fake GPU (sm_90), driver for CUDA 13.0, NVRTC ",
        "failed, so it is not used: conv1d_pack_fwd fp32 out: relative error 3.000e-01", "PACKJIT_SELF_CHECK=off"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(run(device), PACKJIT_CHECK_FAILED);
  EXPECT_EQ(checks, 2);
  EXPECT_EQ(fake.launches_on(kStream), 0);
  EXPECT_EQ(fake.counts().modules_alive, 0);
  EXPECT_TRUE(files().empty());
  wrong = false;
  EXPECT_DONE(run(device));
  EXPECT_EQ(fake.launches_on(kStream), 1);
}

TEST_F(SelfChecks, WhatElseACheckThrowsKeepsItsKind) {
  const auto status_of = [&](auto error) {
    return run(open({[error](Device&, const Spec&, const Config&) { throw error; }, {}, {}}));
  };
  EXPECT_EQ(status_of(DriverError("the GPU is gone")), PACKJIT_DRIVER_ERROR);
  EXPECT_NE(std::string(packjit_last_error()).find("broke off, so it is not used: the GPU is gone"), std::string::npos);
  EXPECT_EQ(status_of(OutOfMemory("none left")), PACKJIT_OUT_OF_MEMORY);
  EXPECT_NE(std::string(packjit_last_error()).find("the self-check of kernel"), std::string::npos);
  EXPECT_EQ(status_of(std::invalid_argument("a bad case")), PACKJIT_INTERNAL);
  EXPECT_NE(std::string(packjit_last_error()).find("could not be made: a bad case"), std::string::npos);
}

TEST_F(SelfChecks, ACheckThatRunsNothingIsNoCheck) {
  EXPECT_EQ(run(open({[](Device&, const Spec&, const Config&) {}, {}, {}})), PACKJIT_INTERNAL);
  EXPECT_NE(std::string(packjit_last_error()).find("it did not run the kernel"), std::string::npos);
}

TEST_F(SelfChecks, K37_ACaptureIsNeitherUsedNorDisturbed) {
  const auto remembered = memory();
  const DeviceHandle device = open(check_with(*remembered));
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  SmallConvolution conv;
  const MapHandle map = map_from_positions(device, conv.positions, kStream);
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_EQ(conv.run(op.get(), map.get(), kStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_EQ(checks, 0);
  EXPECT_DONE(conv.run(op.get(), map.get(), kOtherStream));  // loads and checks beside it
  EXPECT_EQ(checks, 1);
  EXPECT_DONE(conv.run(op.get(), map.get(), kStream));
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
  EXPECT_EQ(fake.counts().recorded, 1);
}

TEST_F(SelfChecks, TheSettingSwitchesThem) {
  setenv("PACKJIT_SELF_CHECK", "off", 1);
  EXPECT_FALSE(api::self_check().run);
  setenv("PACKJIT_SELF_CHECK", "on", 1);
  EXPECT_TRUE(api::self_check().run);
  set_log_callback(records.callback());
  setenv("PACKJIT_SELF_CHECK", "maybe", 1);
  EXPECT_TRUE(api::self_check().run);
  set_log_callback({});
  unsetenv("PACKJIT_SELF_CHECK");
  EXPECT_TRUE(api::self_check().run);
  EXPECT_EQ(records.warnings(),
            std::vector<std::string>{"PACKJIT_SELF_CHECK is 'maybe', expected on or off; on holds"});
}

TEST_F(SelfChecks, HostExecutionChecksNothing) {
  // Its compiler is the machine's own, and every run of it has guards.
  const DeviceHandle device = open_host();
  EXPECT_DONE(run(device));
  EXPECT_EQ(checks, 0);
}

}  // namespace
}  // namespace packjit::testing
