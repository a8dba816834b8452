#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "database/workload.hpp"
#include "generator/operators.hpp"

namespace packjit {

/// A class of shapes that share one tuned Config: what the host knows of a call and the kernels depend on, in steps.
/// A convolution depends on how many elements there are; a scan also on how many sequences share the work and on how
/// much of it the longest one is. Their number is bounded (docs/database_format.md).
struct Bucket {
  std::int64_t dim = 0;     ///< rounded up to 1, 1.25, 1.5 or 1.75 times a power of two, from 32 to 131,072
  std::int64_t tokens = 0;  ///< convolution: rounded up to 1 or 1.5 times a power of two, from 1,024 to 262,144; scan:
                            ///< the nearest of 512, 4,096, 16,384, 32,768 and 262,144
  std::int64_t spread = 0;  ///< scan: tokens over the longest sequence, the nearest of 1, 4, 16 and 64; else 0
  std::int64_t mean_length = 0;  ///< scan: 16 where sequences have 64 tokens or fewer on average, otherwise 512; else 0
  friend bool operator==(const Bucket&, const Bucket&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes the 0 that a defaulted comparison compares with for a pointer
  friend auto operator<=>(const Bucket&, const Bucket&) = default;
};

[[nodiscard]] Bucket bucket_of(Operator op, const Workload& work);

/// A shape of the bucket to measure for it: bucket_of(op, representative(op, b)) == b.
[[nodiscard]] Workload representative(Operator op, const Bucket& bucket);

/// The buckets of one dim that real batches fall into, smallest first: 17 of a convolution, 20 of a scan. A scan's
/// other buckets take the Config of the nearest.
[[nodiscard]] std::vector<Bucket> buckets_to_tune(Operator op, std::int64_t dim);

/// How far apart two buckets of one operator are, in doublings; nothing where what was tuned for one says nothing about
/// the other: dim or a convolution's tokens differ by more than a factor of two, a scan's tokens by more than one step
/// or its spread by more than one.
[[nodiscard]] std::optional<double> distance(Operator op, const Bucket& a, const Bucket& b);

/// "dim 4096, tokens 32768, spread 16, mean length 512", of a convolution the first two: for messages.
[[nodiscard]] std::string text_of(const Bucket& bucket, Operator op);

}  // namespace packjit
