#include "runtime/image_info.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "runtime/nvrtc.hpp"

namespace packjit {
namespace {

// Four kernels whose needs are known from the language: no array, 10 KiB of static shared memory, an array of 64 floats
// indexed at run time (256 bytes of local memory), and more values alive at once than 32 registers hold.
constexpr const char* kSource = R"(
extern "C" __global__ void plain(float* p) { p[threadIdx.x] = 1.0f; }
extern "C" __global__ void shared(float* p) {
  __shared__ float s[2560];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void indexed(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = p[i];
  for (int i = 0; i < n; i++) a[(i * 7 + n) & 63] += a[i & 63];
  p[0] = a[n & 63];
}
extern "C" __global__ void __launch_bounds__(1024, 1) crowded(float* p) {
  float a[150];
#pragma unroll
  for (int i = 0; i < 150; i++) a[i] = p[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 150; i++) p[i * 32 + threadIdx.x + 1] = a[149 - i] * a[(i * 7) % 150];
}
extern "C" __global__ void dynamic(float* p) {
  extern __shared__ float d[];
  d[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = d[threadIdx.x ^ 1];
}
)";

const CompileResult& compiled() {
  static const CompileResult result = compile(*Nvrtc::shared(), kSource, "sm_90", {.verbose = true});
  return result;
}

void expect_known_needs(const std::string& arch) {
  const CompileResult result = compile(*Nvrtc::shared(), kSource, arch);
  ASSERT_TRUE(result.ok) << result.log;
  const ImageInfo image = read_image(result.cubin);
  ASSERT_EQ(image.kernels.size(), 5U) << arch;
  const KernelInfo &crowded = image.kernels[0], &dynamic = image.kernels[1], &indexed = image.kernels[2],
                   &plain = image.kernels[3], &shared = image.kernels[4];
  EXPECT_EQ(crowded.name, "crowded");
  EXPECT_EQ(dynamic.name, "dynamic");
  EXPECT_EQ(indexed.name, "indexed");
  EXPECT_EQ(plain.name, "plain");
  EXPECT_EQ(shared.name, "shared");

  EXPECT_FALSE(crowded.spill_free()) << arch;
  EXPECT_LE(crowded.registers, 64) << arch;  // at most 65,536 registers for 1,024 threads
  EXPECT_GE(crowded.registers, 32) << arch;
  EXPECT_EQ(indexed.frame_bytes, 256) << arch;
  EXPECT_EQ(indexed.stack_bytes, 256) << arch;
  EXPECT_FALSE(indexed.spill_free());
  EXPECT_EQ(shared.shared_bytes, 10240) << arch;
  for (const KernelInfo* kernel : {&crowded, &dynamic, &indexed, &plain}) EXPECT_EQ(kernel->shared_bytes, 0) << arch;
  for (const KernelInfo* kernel : {&dynamic, &plain, &shared}) {
    EXPECT_TRUE(kernel->spill_free()) << arch;
    EXPECT_GT(kernel->registers, 2) << arch;
    EXPECT_LT(kernel->registers, 32) << arch;
    EXPECT_GT(kernel->code_bytes, 0);
  }
}

TEST(ImageInfo, ReadsKnownNeedsOnEveryArchitecture) {
  for (const std::string& arch : Nvrtc::shared()->archs()) expect_known_needs(arch);
}

TEST(ImageInfo, CountsFunctionsThatAreCalled) {
  const std::string source = R"(
__device__ __noinline__ float deep(const float* p, int n) {
  float a[32];
  for (int i = 0; i < 32; i++) a[i] = p[i];
  for (int i = 0; i < n; i++) a[(i * 5 + n) & 31] += a[i & 31];
  return a[n & 31];
}
extern "C" __global__ void caller(float* p, int n) { p[0] = deep(p, n) + deep(p + 32, n + 1); }
)";
  const CompileResult result = compile(*Nvrtc::shared(), source, "sm_90");
  ASSERT_TRUE(result.ok) << result.log;
  const ImageInfo image = read_image(result.cubin);
  ASSERT_EQ(image.kernels.size(), 1U);
  EXPECT_EQ(image.kernels[0].name, "caller");
  EXPECT_FALSE(image.kernels[0].spill_free());
  EXPECT_GE(image.kernels[0].stack_bytes, 128);
}

TEST(ImageInfo, SpillsInTheLogAgreeWithTheImage) {
  ASSERT_TRUE(compiled().ok) << compiled().log;
  const auto reports = spills_in_log(compiled().log);
  ASSERT_EQ(reports.size(), 5U);
  for (const SpillReport& report : reports) {
    EXPECT_EQ(report.store_bytes > 0, report.kernel == "crowded") << report.kernel;
  }
}

TEST(ImageInfo, ReadsTheAssemblersWords) {
  const auto reports = spills_in_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Function properties for one\n"
      "    720 bytes stack frame, 820 bytes spill stores, 816 bytes spill loads\n"
      "ptxas info    : Used 64 registers\n");
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].kernel, "one");
  EXPECT_EQ(reports[0].store_bytes, 820);
  EXPECT_EQ(reports[0].load_bytes, 816);
  EXPECT_TRUE(spills_in_log("").empty());
  EXPECT_TRUE(spills_in_log("Function properties for \n bytes spill stores").empty());
}

// Reading must end in a value or in invalid_argument, whatever the bytes.
bool reads(const std::string& bytes) {
  try {
    (void)read_image(bytes);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

TEST(ImageInfo, TruncatedImagesAreRefused) {
  const std::string& cubin = compiled().cubin;
  ASSERT_TRUE(reads(cubin));
  // The section table lies behind the sections, so every cut before its end loses something.
  std::size_t accepted = 0;
  for (std::size_t length = 0; length < cubin.size(); ++length) {
    if (reads(cubin.substr(0, length))) ++accepted;
  }
  // Only the program headers, which nothing here needs, lie behind it: fewer than 16 of 56 bytes each.
  EXPECT_LT(accepted, 16U * 56U);
  EXPECT_FALSE(reads(""));
  EXPECT_FALSE(reads(std::string(4096, '\0')));
}

TEST(ImageInfo, DamagedBytesNeverCrash) {
  const std::string& cubin = compiled().cubin;
  for (std::size_t i = 0; i < cubin.size(); ++i) {
    for (const char value : {'\x00', '\x7f', '\xff'}) {
      std::string damaged = cubin;
      damaged[i] = value;
      (void)reads(damaged);
    }
  }
}

}  // namespace
}  // namespace packjit
