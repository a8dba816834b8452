#include "runtime/clock.hpp"

#include <thread>

namespace packjit {

Clock system_clock() {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  return {now, [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }};
}

}  // namespace packjit
