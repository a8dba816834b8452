#include "tuning/difference.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace packjit {
namespace {

constexpr std::uint32_t kBlock = 256, kBlocks = 1024;
constexpr std::size_t kSums = std::size_t{2} * kBlocks;
constexpr std::string_view kSource = R"(
struct Pair { const void* a; const void* b; double* sums; long long count; int type; };  // fp32, fp16, bf16

__device__ unsigned bits_at(const void* data, long long i, int type) {
  return type == 0 ? ((const unsigned*)data)[i] : ((const unsigned short*)data)[i];
}
__device__ double number(unsigned bits, int type) {
  if (type == 0) return __uint_as_float(bits);
  if (type == 2) return __uint_as_float(bits << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
  return value;
}
// Of each block, in this order: the sum of squares of a - b, and of b.
extern "C" __global__ void sum_squares(const Pair p) {
  double difference = 0, norm = 0;
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < p.count; i += step) {
    const unsigned a = bits_at(p.a, i, p.type), b = bits_at(p.b, i, p.type);
    const double x = number(a, p.type), y = number(b, p.type);
    if (a != b) difference += (x - y) * (x - y);
    if (a != b || y == y) norm += y * y;
  }
  __shared__ double shared[2][256];
  shared[0][threadIdx.x] = difference;
  shared[1][threadIdx.x] = norm;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[0][threadIdx.x] += shared[0][threadIdx.x + half];
      shared[1][threadIdx.x] += shared[1][threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    p.sums[2 * blockIdx.x] = shared[0][0];
    p.sums[2 * blockIdx.x + 1] = shared[1][0];
  }
}
)";

int type_number(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return 0;
    case ElementType::fp16:
      return 1;
    case ElementType::bf16:
      return 2;
    default:
      throw std::logic_error("only tensors of numbers can be compared on the GPU");
  }
}

}  // namespace

std::string difference_source() { return std::string(kSource); }

Difference::Difference(CudaDevice& device)
    : device_(device), kernel_(device.load_text(difference_source())), sums_(device, kSums * sizeof(double)) {}

double Difference::operator()(const TensorView& a, const TensorView& b) {
  const struct {
    const void* a;
    const void* b;
    void* sums;
    long long count;
    int type;
  } argument{a.data, b.data, sums_.data(), count_of(b.size), type_number(b.type)};
  device_.launch(*kernel_, {"sum_squares", kBlocks, 1, kBlock, 0}, std::as_bytes(std::span(&argument, 1)));
  std::vector<double> sums(kSums);
  device_.read(sums.data(), sums_.data(), sums.size() * sizeof(double));
  double difference = 0, norm = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    difference += sums[2 * block];
    norm += sums[2 * block + 1];
  }
  const double error = norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace packjit
