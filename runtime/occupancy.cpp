#include "runtime/occupancy.hpp"

#include <algorithm>
#include <charconv>

namespace packjit {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr ArchLimits kArchs[] = {
    {75, 1024, 16, 64 * kKiB, 64 * kKiB, 0},       {80, 2048, 32, 164 * kKiB, 163 * kKiB, kKiB},
    {86, 1536, 16, 100 * kKiB, 99 * kKiB, kKiB},   {87, 1536, 16, 164 * kKiB, 163 * kKiB, kKiB},
    {89, 1536, 24, 100 * kKiB, 99 * kKiB, kKiB},   {90, 2048, 32, 228 * kKiB, 227 * kKiB, kKiB},
    {100, 2048, 32, 228 * kKiB, 227 * kKiB, kKiB}, {103, 2048, 32, 228 * kKiB, 227 * kKiB, kKiB},
    {110, 1536, 24, 228 * kKiB, 227 * kKiB, kKiB}, {120, 1536, 24, 100 * kKiB, 99 * kKiB, kKiB},
    {121, 1536, 24, 100 * kKiB, 99 * kKiB, kKiB},
};

// The same on every architecture of the table.
constexpr int kWarpThreads = 32;
constexpr int kMaxBlockThreads = 1024;
constexpr int kPartitions = 4;                 // of an SM; a warp lives in one of them
constexpr int kRegistersPerPartition = 16384;  // 32-bit
constexpr int kRegisterUnit = 256;             // registers are given to a warp in multiples of this

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::optional<ArchLimits> arch_limits(std::string_view arch) {
  constexpr std::string_view kPrefix = "sm_";
  if (!arch.starts_with(kPrefix)) return std::nullopt;
  arch.remove_prefix(kPrefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(arch.data(), arch.data() + arch.size(), number);
  if (error != std::errc() || end != arch.data() + arch.size()) return std::nullopt;
  for (const ArchLimits& limits : kArchs) {
    if (limits.arch == number) return limits;
  }
  return std::nullopt;
}

Occupancy occupancy(const ArchLimits& limits, int registers, std::int64_t shared_bytes, int block) {
  Occupancy result;
  result.max_warps = limits.threads / kWarpThreads;
  if (block < 1 || block > kMaxBlockThreads || shared_bytes > limits.shared_per_block) {
    result.limit = shared_bytes > limits.shared_per_block ? "shared memory" : "threads";
    return result;
  }
  const std::int64_t warps = round_up(block, kWarpThreads) / kWarpThreads;
  const auto consider = [&](std::int64_t blocks, std::string_view limit) {
    if (result.limit.empty() || blocks < result.blocks) {
      result.blocks = static_cast<int>(blocks);
      result.limit = limit;
    }
  };
  consider(limits.blocks, "blocks");
  consider(result.max_warps / warps, "threads");
  if (registers > 0) {
    const std::int64_t per_warp = round_up(std::int64_t{registers} * kWarpThreads, kRegisterUnit);
    const bool fits = per_warp * round_up(warps, kPartitions) <= std::int64_t{kPartitions} * kRegistersPerPartition;
    consider(fits ? kRegistersPerPartition / per_warp * kPartitions / warps : 0, "registers");
  }
  // Turing gives shared memory in units of 256 bytes, later architectures in units of 128.
  const std::int64_t unit = limits.arch < 80 ? 256 : 128;
  const std::int64_t shared = round_up(shared_bytes + limits.reserved_per_block, unit);
  if (shared > 0) consider(limits.shared_bytes / shared, "shared memory");
  result.warps = static_cast<int>(result.blocks * warps);
  return result;
}

}  // namespace packjit
