// What the 32 lanes of a warp do together, beside exchanges: waiting for each other, and sums by the tensor cores.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "runtime/errors.hpp"
#include "tests/host/host_source.hpp"

namespace packjit::test {
namespace {

using Kind = HostOrder::Kind;
const HostOrder kOrders[] = {{Kind::forward, 0}, {Kind::reverse, 0}, {Kind::seeded, 1}, {Kind::seeded, 2}};

// Entries of the matrices of warp w: small integers, so that products and sums are exact.
constexpr int kRows = 16, kInner = 8, kColumns = 8;
int a_entry(int w, int row, int k) { return (7 * row + 5 * k + 3 * w) % 23 - 11; }
int b_entry(int w, int k, int column) { return (3 * k + 11 * column + w) % 19 - 9; }

std::string text() {
  return host_source(R"(
struct Argument { float* out; int n; };
// Each lane takes what its neighbour in the warp has written.
void warp_neighbours(Argument a) {
  float* row = reinterpret_cast<float*>(shared_memory());
  row[threadIdx.x] = float(threadIdx.x);
  sync_warp();
  a.out[threadIdx.x] = row[threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32];
}
void racy_warp_neighbours(Argument a) {
  float* row = reinterpret_cast<float*>(shared_memory());
  row[threadIdx.x] = float(threadIdx.x);
  a.out[threadIdx.x] = row[threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32];
}
// One warp waits more often than the others.
void one_warp_waits(Argument a) {
  if (threadIdx.x / 32 == 1) sync_warp();
  a.out[threadIdx.x] = 1.0f;
}
float a_entry(int w, int row, int k) { return float((7 * row + 5 * k + 3 * w) % 23 - 11); }
float b_entry(int w, int k, int column) { return float((3 * k + 11 * column + w) % 19 - 9); }
// 100 + a * b + 2 * (a * b) in turn with an exchange, as (warps, 16, 8).
void product(Argument a) {
  int w = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, c = int(threadIdx.x) % 4;
  float sums[4] = {100.0f, 100.0f, 100.0f, 100.0f};
  for (int turn = 1; turn <= 2; ++turn) {
    float scale = shuffle_xor(float(turn), 1);
    matrix_sum(sums, scale * a_entry(w, g, c), scale * a_entry(w, g + 8, c), scale * a_entry(w, g, c + 4),
               scale * a_entry(w, g + 8, c + 4), b_entry(w, c, g), b_entry(w, c + 4, g));
  }
  float* to = a.out + (w * 16 + g) * 8 + 2 * c;
  to[0] = sums[0];
  to[1] = sums[1];
  to[64] = sums[2];
  to[65] = sums[3];
}
// Row g of the first half: a[g, 0] * 1, with what tf32 keeps of given[g].
void cut(Argument a) {
  const float given[8] = {1.0f + 0x1p-10f, 1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, -3.0f - 0x1p-9f,
                          -0x1.fffffep0f, __builtin_inff(), __builtin_nanf(""), 0x1p-126f};
  int g = int(threadIdx.x) / 4, c = int(threadIdx.x) % 4;
  float sums[4] = {};
  matrix_sum(sums, c == 0 ? given[g] : 0.0f, 0.0f, 0.0f, 0.0f, c == 0 ? 1.0f : 0.0f, 0.0f);
  if (c == 0) a.out[g] = sums[0];
}
void one_lane_left(Argument a) {
  if (int(threadIdx.x) == a.n - 1) return;
  float sums[4] = {};
  matrix_sum(sums, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f);
  a.out[0] = sums[0];
}
)",
                     {"warp_neighbours", "racy_warp_neighbours", "one_warp_waits", "product", "cut", "one_lane_left"});
}

std::vector<float> run(HostOrder order, const KernelLaunch& launch, std::size_t n) {
  const auto device = open_host_device(order);
  return run_kernel<float>(*device, text(), launch, n);
}

TEST(HostWarp, WaitingMakesWritesVisible) {
  for (const HostOrder order : kOrders) {
    const auto out = run(order, {.entry = "warp_neighbours", .block = 64, .shared_bytes = 256}, 64);
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(out[static_cast<std::size_t>(i)], i % 32 == 31 ? i - 31 : i + 1);
    }
  }
  const KernelLaunch racy{.entry = "racy_warp_neighbours", .block = 64, .shared_bytes = 256};
  EXPECT_TRUE(std::isnan(run({Kind::forward, 0}, racy, 64)[0]));  // its neighbour has not written yet
  EXPECT_EQ(run({Kind::reverse, 0}, racy, 64)[0], 1.0f);
}

TEST(HostWarp, OtherWarpsNeedNotWait) {
  for (const HostOrder order : kOrders) {
    EXPECT_EQ(run(order, {.entry = "one_warp_waits", .block = 96}, 96), std::vector<float>(96, 1.0f));
  }
}

TEST(HostWarp, MatrixSumIsTheSumOfProducts) {
  constexpr int kWarps = 3;
  for (const HostOrder order : kOrders) {
    const auto out = run(order, {.entry = "product", .block = 32 * kWarps}, kWarps * kRows * kColumns);
    for (int w = 0; w < kWarps; ++w) {
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          int product = 0;
          for (int k = 0; k < kInner; ++k) product += a_entry(w, row, k) * b_entry(w, k, column);
          ASSERT_EQ(out[static_cast<std::size_t>((w * kRows + row) * kColumns + column)], 100 + 3 * product)
              << "warp " << w << ", row " << row << ", column " << column;
        }
      }
    }
  }
}

TEST(HostWarp, MatrixSumCutsFactorsToElevenBits) {
  const auto out = run({}, {.entry = "cut", .block = 32}, 8);
  const std::vector<float> kept{1.0f + 0x1p-10f, 1.0f, 1.0f + 0x1p-10f, -3.0f - 0x1p-9f, -0x1.ffcp0f, INFINITY};
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 6), kept);
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(out[7], 0x1p-126f);
}

TEST(HostWarp, MatrixSumNeedsEveryLane) {
  for (const HostOrder order : kOrders) {
    for (const int missing : {0, 13, 31}) {
      const auto message = message_of<CheckFailed>(
          [&] { (void)run(order, {.entry = "one_lane_left", .block = 32}, static_cast<std::size_t>(missing) + 1); });
      const std::string asked = "asks lane " + std::to_string(missing) +
                                " of its warp for a value in an exchange, but "
                                "that lane has left the kernel";
      EXPECT_NE(message.find(asked), std::string::npos) << message;
    }
  }
  const auto message = message_of<CheckFailed>([&] { (void)run({}, {.entry = "one_lane_left", .block = 24}, 100); });
  EXPECT_NE(message.find("asks lane 24 of its warp for a value in an exchange, but that lane does not exist"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace packjit::test
