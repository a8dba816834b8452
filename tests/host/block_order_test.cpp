#include "runtime/host/block_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace packjit::host {
namespace {

using Kind = HostOrder::Kind;

std::vector<std::uint64_t> all(Kind kind, std::uint64_t count, std::uint64_t seed) {
  Random random(seed);
  BlockOrder order(kind, count, random);
  std::vector<std::uint64_t> visited;
  for (std::uint64_t index = 0; order.take(index);) visited.push_back(index);
  return visited;
}

TEST(BlockOrder, ForwardAndReverse) {
  EXPECT_EQ(all(Kind::forward, 4, 0), (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(all(Kind::reverse, 4, 0), (std::vector<std::uint64_t>{3, 2, 1, 0}));
  EXPECT_EQ(all(Kind::forward, 1, 0), (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(all(Kind::reverse, 1, 0), (std::vector<std::uint64_t>{0}));
}

TEST(BlockOrder, SeededVisitsEveryBlockOnce) {
  for (std::uint64_t count = 1; count <= 60; ++count) {
    std::vector<std::uint64_t> visited = all(Kind::seeded, count, count);
    std::sort(visited.begin(), visited.end());
    ASSERT_EQ(visited.size(), count);
    for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(visited[i], i);
  }
  EXPECT_EQ(all(Kind::seeded, 50, 7), all(Kind::seeded, 50, 7));
  EXPECT_NE(all(Kind::seeded, 50, 7), all(Kind::seeded, 50, 8));
}

TEST(BlockOrder, GridsBeyond32Bits) {
  constexpr std::uint64_t kCount = std::uint64_t{2147483647} * 65535;  // the largest grid
  Random random(3);
  BlockOrder reverse(Kind::reverse, kCount, random);
  std::uint64_t index = 0;
  ASSERT_TRUE(reverse.take(index));
  EXPECT_EQ(index, 140735340806144u);
  ASSERT_TRUE(reverse.take(index));
  EXPECT_EQ(index, 140735340806143u);

  BlockOrder seeded(Kind::seeded, kCount, random);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(seeded.take(index));
    EXPECT_LT(index, kCount);
    EXPECT_TRUE(seen.insert(index).second);
  }
}

}  // namespace
}  // namespace packjit::host
