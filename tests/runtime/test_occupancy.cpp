#include "runtime/occupancy.hpp"

#include <gtest/gtest.h>

namespace packjit {
namespace {

struct Case {
  const char* arch;
  int registers, block;
  std::int64_t shared_bytes;
  int blocks;  // from the calculator that NVIDIA ships, cuda_occupancy.h
};

constexpr Case kCases[] = {
    {"sm_75", 16, 32, 10240, 6},   {"sm_75", 64, 256, 0, 4},   {"sm_80", 128, 256, 0, 2},
    {"sm_86", 40, 512, 10240, 3},  {"sm_89", 16, 32, 0, 24},   {"sm_90", 16, 32, 40000, 5},
    {"sm_90", 16, 32, 232448, 1},  {"sm_90", 40, 1024, 0, 1},  {"sm_90", 64, 128, 0, 8},
    {"sm_90", 72, 160, 1000, 5},   {"sm_90", 255, 256, 0, 1},  {"sm_110", 40, 128, 0, 12},
    {"sm_120", 40, 256, 40000, 2}, {"sm_120", 255, 512, 0, 0},
};

TEST(Occupancy, AgreesWithNvidiasCalculator) {
  for (const Case& c : kCases) {
    const Occupancy result = occupancy(*arch_limits(c.arch), c.registers, c.shared_bytes, c.block);
    EXPECT_EQ(result.blocks, c.blocks) << c.arch << " " << c.registers << " " << c.block << " " << c.shared_bytes;
  }
}

TEST(Occupancy, NamesWhatLimits) {
  const ArchLimits hopper = *arch_limits("sm_90");
  EXPECT_EQ(occupancy(hopper, 16, 0, 32).limit, "blocks");
  EXPECT_EQ(occupancy(hopper, 32, 0, 1024).limit, "threads");
  EXPECT_EQ(occupancy(hopper, 128, 0, 128).limit, "registers");
  EXPECT_EQ(occupancy(hopper, 16, 100000, 128).limit, "shared memory");
  EXPECT_EQ(occupancy(hopper, 128, 0, 128).warps, 16);
  EXPECT_EQ(occupancy(hopper, 128, 0, 128).max_warps, 64);
}

TEST(Occupancy, ABlockThatDoesNotFitGivesNone) {
  const ArchLimits ada = *arch_limits("sm_89");
  EXPECT_EQ(occupancy(ada, 16, 99 * 1024 + 1, 128).blocks, 0);
  EXPECT_EQ(occupancy(ada, 16, 99 * 1024, 128).blocks, 1);
  EXPECT_EQ(occupancy(ada, 255, 0, 1024).blocks, 0);
  EXPECT_EQ(occupancy(ada, 16, 0, 1025).blocks, 0);
  EXPECT_EQ(occupancy(ada, 16, 0, 0).blocks, 0);
}

TEST(Occupancy, UnknownArchitecturesHaveNoLimits) {
  for (const char* arch : {"", "sm_", "sm_1", "host", "90", "sm_90a"}) EXPECT_FALSE(arch_limits(arch)) << arch;
}

}  // namespace
}  // namespace packjit
