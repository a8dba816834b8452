#include "tuning/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

namespace packjit {
namespace {

constexpr int kWarmUps = 3;
constexpr std::int64_t kShortestWait = 200'000;  // nanoseconds
constexpr std::int64_t kMostSets = 64;

constexpr std::string_view kCacheNames[] = {"rotating", "warm", "cold"};

constexpr std::uint32_t kBlock = 256;
constexpr std::string_view kSource = R"(
struct Copy { const uint4* from; uint4* to; long long count; };
extern "C" __global__ void copy(const Copy c) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long step = gridDim.x * (long long)blockDim.x;
  for (; i + 3 * step < c.count; i += 4 * step) {
    const uint4 x0 = c.from[i], x1 = c.from[i + step], x2 = c.from[i + 2 * step], x3 = c.from[i + 3 * step];
    c.to[i] = x0;
    c.to[i + step] = x1;
    c.to[i + 2 * step] = x2;
    c.to[i + 3 * step] = x3;
  }
  for (; i < c.count; i += step) c.to[i] = c.from[i];
}

__device__ long long nanoseconds_now() {
  long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// The timer moves in steps, of a microsecond on some GPUs: counting begins and ends at a step.
struct Wait { long long* result; long long nanoseconds; };
extern "C" __global__ void wait_and_count_clocks(const Wait w) {
  const long long before = nanoseconds_now();
  long long begin = before;
  while (begin == before) begin = nanoseconds_now();
  const long long first = clock64();
  long long now = begin;
  while (now - begin < w.nanoseconds) now = nanoseconds_now();
  w.result[0] = clock64() - first;
  w.result[1] = now - begin;
}
)";

struct ClockCount {
  long long clocks, nanoseconds;
};

/// `number`: the place of its count in with.clocks.
void wait_on_device(Instruments& with, int number, std::int64_t nanoseconds) {
  const struct {
    void* result;
    long long nanoseconds;
  } argument{static_cast<ClockCount*>(with.clocks.data()) + number, nanoseconds};
  with.device.launch(*with.kernels, {"wait_and_count_clocks", 1, 1, 1, 0}, std::as_bytes(std::span(&argument, 1)));
}

}  // namespace

CacheState cache_state_named(std::string_view name) {
  for (const CacheState cache : {CacheState::rotating, CacheState::warm, CacheState::cold}) {
    if (name_of(cache) == name) return cache;
  }
  throw std::invalid_argument(fmt::format("--cache is rotating, warm or cold, not '{}'", name));
}

std::string_view name_of(CacheState cache) { return kCacheNames[static_cast<std::size_t>(cache)]; }

std::string describe(CacheState cache, std::int64_t l2_bytes) {
  const std::int64_t mebibytes = l2_bytes >> 20;
  switch (cache) {
    case CacheState::rotating:
      return fmt::format("rotating: sets of buffers that together exceed twice the L2 of {} MiB, used in turn",
                         mebibytes);
    case CacheState::warm:
      return fmt::format("warm: one set of buffers; what fits in the L2 of {} MiB stays there between calls",
                         mebibytes);
    case CacheState::cold:
      return fmt::format("cold: the L2 of {} MiB is overwritten before every call", mebibytes);
  }
  return {};
}

int buffer_sets(CacheState cache, std::int64_t bytes, std::int64_t l2_bytes) {
  if (cache != CacheState::rotating) return 1;
  return static_cast<int>(std::min(kMostSets, 2 * l2_bytes / std::max<std::int64_t>(bytes, 1) + 1));
}

Times spread_of(std::vector<double>& milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto at = [&](double part) {
    return milliseconds[static_cast<std::size_t>(part * static_cast<double>(milliseconds.size() - 1))];
  };
  Times times;
  times.median_ms = at(0.5);
  times.low_ms = at(0.1);
  times.high_ms = at(0.9);
  return times;
}

std::string measuring_source() { return std::string(kSource); }

Instruments::Instruments(CudaDevice& measured, CacheState cache_state, int repeat_count)
    : device(measured),
      cache(cache_state),
      repeats(repeat_count),
      kernels(measured.load_text(measuring_source())),
      clocks(measured, sizeof(ClockCount) * (static_cast<std::size_t>(repeat_count) + 1)) {
  if (cache == CacheState::cold) flushed = Buffer(device, static_cast<std::size_t>(4 * device.info().l2_bytes));
}

std::int64_t waiting_time(Instruments& with, int calls, const std::function<void()>& work) {
  using SteadyClock = std::chrono::steady_clock;
  const SteadyClock::time_point start = SteadyClock::now();
  for (int call = 0; call < calls; ++call) work();
  const std::int64_t launching = std::chrono::nanoseconds(SteadyClock::now() - start).count();
  with.device.synchronize();
  constexpr std::int64_t kLongestWait = 50'000'000;  // nanoseconds
  return std::clamp(2 * launching, kShortestWait, kLongestWait);
}

double measure_round(Instruments& with, int number, std::int64_t wait, int calls, const std::function<void()>& work) {
  if (with.flushed.size() > 0) with.device.fill(with.flushed.data(), 0, with.flushed.size());
  wait_on_device(with, number, wait);
  const float ms = with.device.elapsed_ms([&] {
    for (int call = 0; call < calls; ++call) work();
  });
  return static_cast<double>(ms) / calls;
}

ClockRange clocks_seen(Instruments& with, int count) {
  std::vector<ClockCount> counts(static_cast<std::size_t>(count));
  with.device.read(counts.data(), with.clocks.data(), counts.size() * sizeof(ClockCount));
  const auto megahertz = [](const ClockCount& seen) {
    return 1e3 * static_cast<double>(seen.clocks) / static_cast<double>(seen.nanoseconds);
  };
  const auto [lowest, highest] = std::ranges::minmax_element(counts, {}, megahertz);
  return {megahertz(*lowest), megahertz(*highest)};
}

Times measure(Instruments& with, int calls_per_repeat, const std::function<void()>& work) {
  const int calls = with.cache == CacheState::cold ? 1 : calls_per_repeat;
  for (int i = 0; i < kWarmUps; ++i) work();  // compiles, takes workspace
  with.device.synchronize();
  const std::int64_t wait = waiting_time(with, calls, work);
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(with.repeats));
  for (int i = 0; i < with.repeats; ++i) milliseconds.push_back(measure_round(with, i, wait, calls, work));
  wait_on_device(with, with.repeats, kShortestWait);
  Times times = spread_of(milliseconds);
  times.calls_per_repeat = calls;
  const ClockRange clocks = clocks_seen(with, with.repeats + 1);
  times.lowest_mhz = clocks.lowest_mhz;
  times.highest_mhz = clocks.highest_mhz;
  return times;
}

double copy_bandwidth(Instruments& with) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  constexpr std::uint32_t kBlocksPerMultiprocessor = 16;
  const Buffer from(with.device, kBytes), to(with.device, kBytes);
  with.device.fill(from.data(), 0x3C, kBytes);
  const struct {
    const void* from;
    void* to;
    long long count;
  } argument{from.data(), to.data(), kBytes / 16};
  const std::uint32_t grid = kBlocksPerMultiprocessor * static_cast<std::uint32_t>(with.device.info().multiprocessors);
  const Times times = measure(with, 5, [&] {
    with.device.launch(*with.kernels, {"copy", grid, 1, kBlock, 0}, std::as_bytes(std::span(&argument, 1)));
  });
  return 2.0 * static_cast<double>(kBytes) / (times.median_ms * 1e-3);
}

}  // namespace packjit
