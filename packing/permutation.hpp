#pragma once

#include <bit>
#include <cstdint>

#include "packing/random.hpp"

namespace packjit {

/// A permutation of 0 to count - 1 that is computed place by place and stored nowhere, so that any place of any epoch
/// can be asked for at once. A Feistel network over the next even number of bits; results beyond the count go through
/// it again (cycle walking), at most three times more on average. The same on every machine. For shuffling, not for
/// secrets.
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch)
      : count_(count), half_bits_(count > 4 ? static_cast<std::uint32_t>(std::bit_width(count - 1) + 1) / 2 : 1) {
    SplitMix64 random(SplitMix64(seed).next() ^ epoch);
    for (std::uint64_t& key : keys_) key = random.next();
  }

  /// `place` is below the count; so is the result.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) const {
    do {
      place = network(place);
    } while (place >= count_);
    return place;
  }

 private:
  [[nodiscard]] std::uint64_t network(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ (SplitMix64(right ^ key).next() & mask);
      left = right;
      right = mixed;
    }
    return left << half_bits_ | right;
  }

  static constexpr int kRounds = 6;
  std::uint64_t count_;
  std::uint32_t half_bits_;
  std::uint64_t keys_[kRounds] = {};
};

}  // namespace packjit
