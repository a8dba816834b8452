#include "runtime/cuda_device.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

// The struct that every kernel below takes by value.
struct Argument {
  float* data;
  long long count;
};

constexpr const char* kSource = R"(
struct Argument { float* data; long long count; };
extern "C" __global__ void double_all(Argument a) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < a.count) a.data[i] *= 2.0f;
}
extern "C" __global__ void past_the_end(Argument a) { a.data[a.count] = 0.0f; }
extern "C" __global__ void before_the_start(Argument a) { a.data[-1] = 0.0f; }
extern "C" __global__ void wild(Argument a) { *(volatile float*)(a.count * 4096) = 1.0f; }
extern "C" __global__ void mirror(Argument a) {
  extern __shared__ float values[];
  for (long long i = threadIdx.x; i < a.count; i += blockDim.x) values[i] = a.data[i];
  __syncthreads();
  for (long long i = threadIdx.x; i < a.count; i += blockDim.x) a.data[i] = values[a.count - 1 - i];
}
)";

// Tests that need a GPU; they are skipped, with the reason, where there is none.
class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const DriverSurvey survey = survey_driver();
    if (survey.gpus.empty()) GTEST_SKIP() << survey.problem;
    device = CudaDevice::open();
  }
  void run(const std::string& entry, float* data, long long count, std::uint32_t shared_bytes = 0) {
    if (module == nullptr) module = device->load_text(kSource);
    const Argument argument{data, count};
    device->launch(*module, {entry, 1, 1, 256, shared_bytes}, std::as_bytes(std::span(&argument, 1)));
  }
  std::unique_ptr<CudaDevice> device;
  std::shared_ptr<const Module> module;
};

TEST(CudaDeviceWithoutGpu, OpeningSaysWhatIsMissing) {
  const DriverSurvey survey = survey_driver();
  if (!survey.gpus.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_FALSE(survey.problem.empty());
  try {
    (void)open_cuda_device();
    FAIL() << "opened";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.what(), survey.problem);
    EXPECT_NE(survey.problem.find("--device host"), std::string::npos);
  }
}

TEST_F(Gpu, DescribesItself) {
  EXPECT_EQ(device->info().kind, "cuda");
  EXPECT_EQ(device->info().arch.substr(0, 3), "sm_");
  EXPECT_GT(device->info().multiprocessors, 0);
  EXPECT_GE(device->info().shared_bytes_per_block, 48 * 1024);
  EXPECT_GT(device->info().memory_bytes, 1 << 30);
  EXPECT_GE(device->info().l2_bytes, 512 * 1024);  // the smallest since sm_75
  EXPECT_GT(device->info().clock_mhz, 500);
  EXPECT_LT(device->info().clock_mhz, 5000);
}

TEST_F(Gpu, CopiesFillsAndRuns) {
  const std::vector<float> values = {1.0f, -2.5f, 3.0f};
  const Buffer buffer(*device, sizeof(float) * values.size());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0U);
  device->write(buffer.data(), values.data(), buffer.size());
  run("double_all", static_cast<float*>(buffer.data()), 3);
  std::vector<float> result(3);
  device->read(result.data(), buffer.data(), buffer.size());
  EXPECT_EQ(result, (std::vector<float>{2.0f, -5.0f, 6.0f}));
  device->fill(buffer.data(), 0, buffer.size());
  device->read(result.data(), buffer.data(), buffer.size());
  EXPECT_EQ(result, (std::vector<float>{0.0f, 0.0f, 0.0f}));
  EXPECT_NO_THROW(device->check_guards());
  const float milliseconds = device->elapsed_ms([&] { run("double_all", static_cast<float*>(buffer.data()), 3); });
  EXPECT_GE(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 1000.0f);
}

TEST_F(Gpu, AWritePastTheEndIsFound) {
  const Buffer buffer(*device, 5 * sizeof(float));
  run("past_the_end", static_cast<float*>(buffer.data()), 5);
  try {
    device->check_guards();
    FAIL() << "not found";
  } catch (const CheckFailed& error) {
    EXPECT_NE(std::string(error.what()).find("0 bytes past its end"), std::string::npos) << error.what();
  }
}

TEST_F(Gpu, AWriteBeforeTheStartIsFound) {
  const Buffer buffer(*device, 5 * sizeof(float));
  run("before_the_start", static_cast<float*>(buffer.data()), 5);
  try {
    device->check_guards();
    FAIL() << "not found";
  } catch (const CheckFailed& error) {
    EXPECT_NE(std::string(error.what()).find("4 bytes before its start"), std::string::npos) << error.what();
  }
}

TEST_F(Gpu, DynamicSharedMemoryIsRaisedAsNeeded) {
  constexpr int kCount = 23000;  // 92,000 bytes, above the 48 KiB that need no permission
  if (device->info().shared_bytes_per_block < kCount * 4) GTEST_SKIP() << "too little shared memory";
  std::vector<float> values(kCount);
  for (int i = 0; i < kCount; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i);
  const Buffer buffer(*device, sizeof(float) * kCount);
  device->write(buffer.data(), values.data(), buffer.size());
  run("mirror", static_cast<float*>(buffer.data()), kCount, kCount * 4);
  run("mirror", static_cast<float*>(buffer.data()), 100, 400);
  run("mirror", static_cast<float*>(buffer.data()), kCount, kCount * 4);
  device->read(values.data(), buffer.data(), buffer.size());
  // Mirrored twice, with the first hundred of the mirrored row mirrored in between.
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(values[kCount - 1], static_cast<float>(kCount - 100));
  EXPECT_THROW(run("mirror", static_cast<float*>(buffer.data()), 1, 1U << 30), std::invalid_argument);
}

TEST_F(Gpu, AnUnknownKernelIsNamed) {
  try {
    run("no_such_kernel", nullptr, 0);
    FAIL() << "launched";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("no_such_kernel"), std::string::npos);
  }
}

TEST_F(Gpu, SourceThatDoesNotCompileIsBadInputAndDoesNotStick) {
  EXPECT_THROW((void)device->load_text("extern \"C\" __global__ void k(int) { missing(); }"), std::invalid_argument);
  EXPECT_NO_THROW((void)device->load_text(kSource));
}

TEST_F(Gpu, TheDriverAgreesOnResources) {
  module = device->load_text(kSource);
  const LoadedKernel kernel = device->inspect(*module, {"double_all", 1, 1, 256, 0});
  EXPECT_GT(kernel.registers, 2);
  EXPECT_EQ(kernel.local_bytes, 0);
  EXPECT_EQ(kernel.shared_bytes, 0);
  EXPECT_GT(kernel.blocks_per_multiprocessor, 1);
}

TEST_F(Gpu, LoadingTwiceGivesTheSameModule) {
  const Spec spec(Operator::conv1d_pack_fwd);
  const Config config(Operator::conv1d_pack_fwd);
  const auto first = device->load(spec, config);
  EXPECT_EQ(device->load(spec, config), first);
}

// The last one, since the context is lost afterwards.
TEST_F(Gpu, ZzzAFaultNamesTheKernel) {
  const Buffer buffer(*device, 16);
  run("wild", static_cast<float*>(buffer.data()), 1);
  try {
    device->synchronize();
    FAIL() << "no fault";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("wild"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace packjit
