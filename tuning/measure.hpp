#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/cuda_device.hpp"

namespace packjit {

/// What the L2 holds when a timed call begins.
enum class CacheState {
  rotating,  ///< several sets of buffers, together more than twice the L2, used in turn
  warm,      ///< one set of buffers: what fits in the L2 stays there between calls
  cold       ///< a buffer larger than the L2 is written before every call, outside of the timed region
};
/// Throws std::invalid_argument that lists the three names.
[[nodiscard]] CacheState cache_state_named(std::string_view name);
[[nodiscard]] std::string_view name_of(CacheState cache);
[[nodiscard]] std::string describe(CacheState cache, std::int64_t l2_bytes);
/// Sets of buffers of `bytes` each that a measurement takes in turn.
[[nodiscard]] int buffer_sets(CacheState cache, std::int64_t bytes, std::int64_t l2_bytes);

struct Times {
  double median_ms = 0, low_ms = 0, high_ms = 0;  ///< low and high: 10 % and 90 % of the repeats
  double lowest_mhz = 0, highest_mhz = 0;         ///< clock of the multiprocessors before and after the repeats
  int calls_per_repeat = 0;
};
/// Of one value at least; changes the order.
[[nodiscard]] Times spread_of(std::vector<double>& milliseconds);

/// CUDA C++ of the kernels that measuring needs: `copy` and `wait_and_count_clocks`.
[[nodiscard]] std::string measuring_source();

/// What measuring needs on the device. Must not outlive it.
struct Instruments {
  Instruments(CudaDevice& measured, CacheState cache_state, int repeat_count);
  CudaDevice& device;
  CacheState cache;
  int repeats;
  std::shared_ptr<const Module> kernels;
  Buffer clocks;   ///< for each wait: clocks of the multiprocessor, nanoseconds
  Buffer flushed;  ///< empty unless cold
};

/// How long the GPU has to wait, in nanoseconds, while the host launches so many calls. Makes them once.
[[nodiscard]] std::int64_t waiting_time(Instruments& with, int calls, const std::function<void()>& work);
/// Milliseconds a call of `work`, from one round of `calls` between two events, behind a wait of so many nanoseconds.
/// The clock seen meanwhile is noted as `number`, from 0 to with.repeats.
[[nodiscard]] double measure_round(Instruments& with, int number, std::int64_t wait, int calls,
                                   const std::function<void()>& work);
struct ClockRange {
  double lowest_mhz = 0, highest_mhz = 0;
};
/// Of the first `count` rounds that noted it.
[[nodiscard]] ClockRange clocks_seen(Instruments& with, int count);

/// Times `work`, `calls_per_repeat` calls between two events (always one when cold). While the host launches them the
/// GPU waits in a kernel of one thread, which counts clocks meanwhile: so launching is not what is measured, unless it
/// takes more than 50 ms or more launches than the driver's queue holds (about a thousand).
[[nodiscard]] Times measure(Instruments& with, int calls_per_repeat, const std::function<void()>& work);

/// Bytes read and written a second by a copy of 1 GiB with 16-byte accesses, the bandwidth that rows are compared to.
[[nodiscard]] double copy_bandwidth(Instruments& with);

}  // namespace packjit
