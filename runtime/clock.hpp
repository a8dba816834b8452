#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace packjit {

/// The time of day, as the disk cache sees it; tests pass one of their own.
struct Clock {
  std::function<std::int64_t()> now;  ///< nanoseconds since 1970
  std::function<void(std::chrono::milliseconds)> sleep;
};

[[nodiscard]] Clock system_clock();

}  // namespace packjit
