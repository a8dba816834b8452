// Asynchronous copies: when they land is up to the order, so that a kernel that looks too early, or writes too late,
// shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "runtime/errors.hpp"
#include "tests/host/host_source.hpp"

namespace packjit::test {
namespace {

using Kind = HostOrder::Kind;
constexpr std::uint32_t kUntouched = 0xffffffffu;  // shared memory before anybody wrote to it
constexpr std::size_t kThreads = 64;

// Each thread copies a word of its own, or four; out holds the words in front and what the threads have found behind.
std::string text() {
  return host_source(R"(
struct Argument { uint32* out; int n; };
struct Words { uint32* given; uint32* found; uint32* copied; };
Words words(const Argument& a, int count) {
  Words w = {a.out + count * threadIdx.x, a.out + count * blockDim.x + threadIdx.x,
             reinterpret_cast<uint32*>(shared_memory()) + count * threadIdx.x};
  for (int i = 0; i < count; ++i) w.given[i] = 1000 * (i + 1) + threadIdx.x;
  return w;
}
void waits(Argument a) {
  Words w = words(a, 4);
  copy_async<16>(w.copied, w.given);
  wait_copies();
  w.found[0] = w.copied[3];
}
void forgets_to_wait(Argument a) {
  Words w = words(a, 1);
  copy_async<4>(w.copied, w.given);
  w.found[0] = w.copied[0];
}
// On a GPU either value may arrive.
void changes_what_is_copied(Argument a) {
  Words w = words(a, 1);
  copy_async<4>(w.copied, w.given);
  w.given[0] = 5;
  wait_copies();
  w.found[0] = w.copied[0];
}
// The neighbour's copy is there only once that thread has waited, and the block after it.
void waits_for_its_own_only(Argument a) {
  Words w = words(a, 1);
  copy_async<4>(w.copied, w.given);
  sync_block();
  w.found[0] = reinterpret_cast<uint32*>(shared_memory())[(threadIdx.x + 1) % blockDim.x];
  wait_copies();
}
void waits_before_the_barrier(Argument a) {
  Words w = words(a, 1);
  copy_async<4>(w.copied, w.given);
  wait_copies();
  sync_block();
  w.found[0] = reinterpret_cast<uint32*>(shared_memory())[(threadIdx.x + 1) % blockDim.x];
}
void copies_off_a_word(Argument a) { if (threadIdx.x == 3) copy_async<8>(shared_memory(), a.out + 1); }
)",
                     {"waits", "forgets_to_wait", "changes_what_is_copied", "waits_for_its_own_only",
                      "waits_before_the_barrier", "copies_off_a_word"});
}

/// What each thread of a block has found.
std::vector<std::uint32_t> found(HostOrder order, const char* entry, std::size_t words = 1) {
  const auto device = open_host_device(order);
  const auto out = run_kernel<std::uint32_t>(
      *device, text(),
      {.entry = entry, .block = kThreads, .shared_bytes = static_cast<std::uint32_t>(4 * words * kThreads)},
      (words + 1) * kThreads);
  return {out.begin() + static_cast<std::ptrdiff_t>(words * kThreads), out.end()};
}

std::vector<std::uint32_t> numbered(std::uint32_t first) {
  std::vector<std::uint32_t> result(kThreads);
  for (std::uint32_t i = 0; i < kThreads; ++i) result[i] = first + i;
  return result;
}

const HostOrder kOrders[] = {{Kind::forward, 0}, {Kind::reverse, 0}, {Kind::seeded, 1}, {Kind::seeded, 2}};

TEST(HostAsyncCopy, IsThereOnceItsThreadHasWaited) {
  for (const HostOrder order : kOrders) EXPECT_EQ(found(order, "waits", 4), numbered(4000));
}

TEST(HostAsyncCopy, AForgottenWaitChangesTheResult) {
  EXPECT_EQ(found({Kind::forward, 0}, "forgets_to_wait"), numbered(1000));
  EXPECT_EQ(found({Kind::reverse, 0}, "forgets_to_wait"), std::vector<std::uint32_t>(kThreads, kUntouched));
  const auto seeded = found({Kind::seeded, 1}, "forgets_to_wait");
  const auto late = std::count(seeded.begin(), seeded.end(), kUntouched);
  EXPECT_GT(late, 0);
  EXPECT_LT(late, static_cast<std::ptrdiff_t>(kThreads));
  EXPECT_EQ(found({Kind::seeded, 1}, "forgets_to_wait"), seeded);
  EXPECT_NE(found({Kind::seeded, 2}, "forgets_to_wait"), seeded);
}

TEST(HostAsyncCopy, ReadsItsSourceWhenItLands) {
  EXPECT_EQ(found({Kind::forward, 0}, "changes_what_is_copied"), numbered(1000));
  EXPECT_EQ(found({Kind::reverse, 0}, "changes_what_is_copied"), std::vector<std::uint32_t>(kThreads, 5));
}

TEST(HostAsyncCopy, OtherThreadsSeeItAfterWaitAndBarrier) {
  auto expected = numbered(1001);
  expected.back() = 1000;
  for (const HostOrder order : kOrders) EXPECT_EQ(found(order, "waits_before_the_barrier"), expected);
  EXPECT_EQ(found({Kind::forward, 0}, "waits_for_its_own_only"), expected);
  EXPECT_NE(found({Kind::reverse, 0}, "waits_for_its_own_only"), expected);
}

TEST(HostAsyncCopy, AddressesAreMultiplesOfTheSize) {
  for (const HostOrder order : kOrders) {
    const auto message = message_of<CheckFailed>([&] { (void)found(order, "copies_off_a_word"); });
    EXPECT_NE(message.find("kernel copies_off_a_word, block (0, 0): thread 3 copies 8 bytes asynchronously from an "
                           "address that is no multiple of 8"),
              std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace packjit::test
