#pragma once

#include <cstdint>
#include <numeric>

#include "runtime/device.hpp"
#include "runtime/host/random.hpp"

namespace packjit::host {

/// Visits the numbers 0 .. count-1, each once, in the order asked for, without storing them: a grid may be large.
class BlockOrder {
 public:
  /// `count` is at least 1.
  BlockOrder(HostOrder::Kind kind, std::uint64_t count, Random& random) : count_(count), left_(count) {
    switch (kind) {
      case HostOrder::Kind::forward:
        next_ = 0, step_ = 1 % count;
        break;
      case HostOrder::Kind::reverse:
        next_ = count - 1, step_ = count - 1;
        break;
      case HostOrder::Kind::seeded:
        // Steps of a length that has no factor in common with the count meet every number before the first again.
        next_ = random.next() % count;
        do step_ = random.next() % count;
        while (std::gcd(step_, count) != 1);
        break;
    }
  }

  /// False when all have been visited.
  [[nodiscard]] bool take(std::uint64_t& index) {
    if (left_ == 0) return false;
    --left_;
    index = next_;
    next_ = next_ >= count_ - step_ ? next_ - (count_ - step_) : next_ + step_;
    return true;
  }

 private:
  std::uint64_t count_, left_, next_ = 0, step_ = 0;
};

}  // namespace packjit::host
