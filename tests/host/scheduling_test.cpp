// Barriers, exchanges, the order of threads and blocks, and what happens when threads wait in vain.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>

#include "runtime/errors.hpp"
#include "tests/host/host_source.hpp"

namespace packjit::test {
namespace {

using Kind = HostOrder::Kind;
constexpr std::uint32_t kUntouched = 0xffffffffu;  // shared memory before anybody wrote to it

const HostOrder kOrders[] = {{Kind::forward, 0}, {Kind::reverse, 0}, {Kind::seeded, 1}, {Kind::seeded, 2}};

std::string text() {
  return host_source(R"(
struct Argument { uint32* out; int n; };
// Each thread hands its number to its left neighbour, through shared memory: right only with the barrier.
void neighbours(Argument a) {
  uint32* row = reinterpret_cast<uint32*>(shared_memory());
  row[threadIdx.x] = threadIdx.x;
  sync_block();
  a.out[blockIdx.x * a.n / gridDim.x + threadIdx.x] = row[(threadIdx.x + 1) % blockDim.x];
}
void racy_neighbours(Argument a) {
  uint32* row = reinterpret_cast<uint32*>(shared_memory());
  row[threadIdx.x] = threadIdx.x;
  a.out[threadIdx.x] = row[(threadIdx.x + 1) % blockDim.x];
}
// The same race behind a barrier, so in a later phase.
void racy_later(Argument a) {
  uint32* row = reinterpret_cast<uint32*>(shared_memory());
  sync_block();
  row[threadIdx.x] = threadIdx.x;
  a.out[threadIdx.x] = row[(threadIdx.x + 1) % blockDim.x];
  sync_block();
}
// out[0] counts; behind it stands who came when, before and after a barrier.
void order(Argument a) {
  a.out[1 + a.out[0]++] = threadIdx.x;
  sync_block();
  a.out[1 + a.out[0]++] = threadIdx.x;
}
void block_order(Argument a) { a.out[1 + a.out[0]++] = blockIdx.x + 10 * blockIdx.y; }
void sum_of_warp(Argument a) {
  float sum = float(threadIdx.x);
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  a.out[threadIdx.x] = uint32(sum);
}
// Sums of warps meet in shared memory, three times over, with barriers in between.
void sum_of_block(Argument a) {
  float* sums = reinterpret_cast<float*>(shared_memory());
  float total = 0;
  for (int round = 0; round < 3; ++round) {
    float sum = float(threadIdx.x + 1);
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    sync_block();
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += sums[warp];
    sync_block();
  }
  a.out[threadIdx.x] = uint32(total);
}
void count_blocks(Argument a) { ++a.out[blockIdx.y * gridDim.x + blockIdx.x]; }
void divergent_barrier(Argument) { if (blockIdx.x == 2 && threadIdx.x >= 40) return; sync_block(); }
void barrier_against_exchange(Argument) { if (threadIdx.x < 16) sync_block(); else shuffle_xor(1.0f, 1); }
void exchange_with_the_dead(Argument) { if (threadIdx.x % 32 == 5) return; shuffle_xor(1.0f, 1); }
void exchange_among_the_living(Argument a) {
  if (threadIdx.x % 32 >= 16) return;
  a.out[threadIdx.x] = uint32(shuffle_xor(float(threadIdx.x), 15));
}
// Two groups of one copy each, read after the wait for the first and after the wait for both.
void copies_in_groups(Argument a) {
  uint32* row = reinterpret_cast<uint32*>(shared_memory());
  for (int i = 0; i < 2; ++i) {
    a.out[i] = 10 + i;
    copy_async<4>(row + i, a.out + i);
    commit_copies();
  }
  wait_copies_but<1>();
  a.out[2] = row[0];
  a.out[3] = row[1];
  wait_copies_but<0>();
  a.out[4] = row[1];
}
)",
                     {"neighbours", "racy_neighbours", "racy_later", "order", "block_order", "sum_of_warp",
                      "sum_of_block", "count_blocks", "divergent_barrier", "barrier_against_exchange",
                      "exchange_with_the_dead", "exchange_among_the_living", "copies_in_groups"});
}

std::vector<std::uint32_t> run(HostOrder order, KernelLaunch launch, std::size_t n) {
  const auto device = open_host_device(order);
  return run_kernel<std::uint32_t>(*device, text(), launch, n);
}

std::vector<std::uint32_t> numbers(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

TEST(HostScheduling, BarrierMakesResultsIndependentOfOrder) {
  std::vector<std::uint32_t> expected = numbers(1, 96);
  expected[95] = 0;
  for (const HostOrder order : kOrders) {
    EXPECT_EQ(run(order, {.entry = "neighbours", .block = 96, .shared_bytes = 384}, 96), expected);
  }
}

TEST(HostScheduling, CopiesLandAtIssueOrWhenTheirGroupIsWaitedFor) {
  const KernelLaunch launch{.entry = "copies_in_groups", .block = 1, .shared_bytes = 8};
  EXPECT_EQ(run({Kind::forward, 0}, launch, 5), (std::vector<std::uint32_t>{10, 11, 10, 11, 11}));
  EXPECT_EQ(run({Kind::reverse, 0}, launch, 5), (std::vector<std::uint32_t>{10, 11, 10, kUntouched, 11}));
}

TEST(HostScheduling, MissingBarrierShows) {
  for (const char* entry : {"racy_neighbours", "racy_later"}) {
    const KernelLaunch launch{.entry = entry, .block = 64, .shared_bytes = 256};
    std::vector<std::uint32_t> forward(64, kUntouched), reverse = numbers(1, 64);
    forward[63] = 0;
    reverse[63] = kUntouched;
    EXPECT_EQ(run({Kind::forward, 0}, launch, 64), forward) << entry;
    EXPECT_EQ(run({Kind::reverse, 0}, launch, 64), reverse) << entry;
    const auto seeded = run({Kind::seeded, 1}, launch, 64);
    EXPECT_NE(seeded, forward) << entry;
    EXPECT_NE(seeded, reverse) << entry;
    EXPECT_EQ(seeded, run({Kind::seeded, 1}, launch, 64)) << entry;
    EXPECT_NE(seeded, run({Kind::seeded, 2}, launch, 64)) << entry;
  }
}

TEST(HostScheduling, OrderOfThreadsInEveryPhase) {
  const KernelLaunch launch{.entry = "order", .block = 40};
  const auto forward = run({Kind::forward, 0}, launch, 81);
  const auto reverse = run({Kind::reverse, 0}, launch, 81);
  const auto seeded = run({Kind::seeded, 5}, launch, 81);
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(forward[1 + i], i);
    EXPECT_EQ(forward[41 + i], i);
    EXPECT_EQ(reverse[1 + i], 39 - i);
    EXPECT_EQ(reverse[41 + i], 39 - i);
  }
  const std::vector<std::uint32_t> first(seeded.begin() + 1, seeded.begin() + 41),
      second(seeded.begin() + 41, seeded.end());
  EXPECT_NE(first, second);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), numbers(0, 40).begin()));
  EXPECT_TRUE(std::is_permutation(second.begin(), second.end(), numbers(0, 40).begin()));
}

TEST(HostScheduling, OrderOfBlocks) {
  const KernelLaunch launch{.entry = "block_order", .grid_x = 3, .grid_y = 2};
  EXPECT_EQ(run({Kind::forward, 0}, launch, 7), (std::vector<std::uint32_t>{6, 0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(run({Kind::reverse, 0}, launch, 7), (std::vector<std::uint32_t>{6, 12, 11, 10, 2, 1, 0}));
  auto seeded = run({Kind::seeded, 3}, launch, 7);
  std::sort(seeded.begin() + 1, seeded.end());
  EXPECT_EQ(seeded, (std::vector<std::uint32_t>{6, 0, 1, 2, 10, 11, 12}));
}

TEST(HostScheduling, ExchangeStaysInsideTheWarp) {
  for (const HostOrder order : kOrders) {
    const auto out = run(order, {.entry = "sum_of_warp", .block = 64}, 64);
    EXPECT_EQ(std::count(out.begin(), out.begin() + 32, 496u), 32);  // 0 + ... + 31
    EXPECT_EQ(std::count(out.begin() + 32, out.end(), 1520u), 32);   // 32 + ... + 63
  }
}

TEST(HostScheduling, ExchangesAndBarriersTogether) {
  for (const HostOrder order : kOrders) {
    const auto out = run(order, {.entry = "sum_of_block", .block = 256, .shared_bytes = 32}, 256);
    EXPECT_EQ(std::count(out.begin(), out.end(), 3u * 32896u), 256);  // 1 + ... + 256
  }
}

TEST(HostScheduling, LargestBlock) {
  std::vector<std::uint32_t> expected = numbers(1, 1024);
  expected[1023] = 0;
  EXPECT_EQ(run({Kind::seeded, 9}, {.entry = "neighbours", .block = 1024, .shared_bytes = 4096}, 1024), expected);
}

TEST(HostScheduling, EveryBlockOfATallGridRunsOnce) {
  for (const HostOrder order : kOrders) {
    const auto out = run(order, {.entry = "count_blocks", .grid_x = 3, .grid_y = 65535}, 196605);
    EXPECT_EQ(std::count(out.begin(), out.end(), 1u), 196605);
  }
}

TEST(HostScheduling, DivergentBarrierIsReported) {
  for (const HostOrder order : kOrders) {
    const auto device = open_host_device(order);
    const auto message = message_of<CheckFailed>([&] {
      (void)run_kernel<std::uint32_t>(*device, text(), {.entry = "divergent_barrier", .grid_x = 4, .block = 64}, 64);
    });
    EXPECT_NE(message.find("kernel divergent_barrier, block (2, 0)"), std::string::npos) << message;
    EXPECT_NE(message.find("40 of 64 threads wait at the barrier of the block (sync_block) (the first is thread 0)"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("24 of 64 threads have left the kernel (the first is thread 40)"), std::string::npos)
        << message;
    // The device can be used again.
    EXPECT_EQ(run_kernel<std::uint32_t>(*device, text(), {.entry = "sum_of_warp", .block = 32}, 32)[7], 496u);
  }
}

TEST(HostScheduling, BarrierAgainstExchangeIsReported) {
  const auto message = message_of<CheckFailed>([&] {
    (void)run({Kind::seeded, 4}, {.entry = "barrier_against_exchange", .block = 32}, 32);
  });
  EXPECT_NE(message.find("16 of 32 threads wait at the barrier of the block (sync_block) (the first is thread 0)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("16 of 32 threads wait at an exchange of their warp (the first is thread 16)"),
            std::string::npos)
      << message;
}

TEST(HostScheduling, ExchangeNeedsALivingLane) {
  for (const HostOrder order : kOrders) {
    const auto message =
        message_of<CheckFailed>([&] { (void)run(order, {.entry = "exchange_with_the_dead", .block = 32}, 32); });
    EXPECT_NE(message.find("thread 4 asks lane 5"), std::string::npos) << message;
    const auto out = run(order, {.entry = "exchange_among_the_living", .block = 64}, 64);
    EXPECT_EQ(out[0], 15u);
    EXPECT_EQ(out[15], 0u);
    EXPECT_EQ(out[35], 44u);
  }
  const auto message = message_of<CheckFailed>([&] { (void)run({}, {.entry = "sum_of_warp", .block = 8}, 8); });
  EXPECT_NE(message.find("lane 16 of its warp for a value in an exchange, but that lane does not exist"),
            std::string::npos)
      << message;
}

TEST(HostScheduling, DevicesOnTwoOperatingSystemThreads) {
  const auto work = [](HostOrder order) {
    const auto device = open_host_device(order);
    for (int i = 0; i < 20; ++i) {
      const auto out =
          run_kernel<std::uint32_t>(*device, text(), {.entry = "sum_of_block", .block = 64, .shared_bytes = 8}, 64);
      EXPECT_EQ(std::count(out.begin(), out.end(), 3u * 2080u), 64);  // 1 + ... + 64
    }
  };
  std::thread other(work, kOrders[1]);
  work(kOrders[2]);
  other.join();
}

TEST(HostScheduling, DeviceMovesToAnotherOperatingSystemThread) {
  const auto device = open_host_device();
  const auto work = [&] {
    const auto out = run_kernel<std::uint32_t>(*device, text(), {.entry = "sum_of_warp", .block = 32}, 32);
    EXPECT_EQ(out[31], 496u);
  };
  work();
  std::thread(work).join();
  work();
}

TEST(HostScheduling, LaunchesThatAGpuRefusesAreRefused) {
  const KernelLaunch bad[] = {{.entry = "order", .block = 1025},
                              {.entry = "order", .block = 0},
                              {.entry = "order", .grid_x = 0},
                              {.entry = "order", .grid_y = 65536},
                              {.entry = "order", .shared_bytes = 227 * 1024 + 1}};
  for (const KernelLaunch& launch : bad) EXPECT_THROW((void)run({}, launch, 1), std::invalid_argument);
  const auto message = message_of<std::invalid_argument>([&] { (void)run({}, {.entry = "no_such_kernel"}, 1); });
  EXPECT_NE(message.find("no_such_kernel"), std::string::npos) << message;
}

}  // namespace
}  // namespace packjit::test
