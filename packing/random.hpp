#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace packjit {

/// The splitmix64 generator (Steele, Lea, Flood 2014). The standard library's distributions differ between
/// implementations; this gives the same numbers everywhere.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

  /// A number below `bound` (at least 1). The bias of the remainder is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

template <typename T>
void shuffle(std::vector<T>& values, SplitMix64& random) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[static_cast<std::size_t>(random.below(left))]);
  }
}

}  // namespace packjit
