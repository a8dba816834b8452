#include "database/bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace packjit {
namespace {

/// The least of `parts` steps a doubling, held between two powers of two, that is not below `value`.
std::int64_t rounded_up(std::int64_t value, std::int64_t parts, std::int64_t least, std::int64_t most) {
  for (std::int64_t power = least; power < most; power *= 2) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t step = power + power * part / parts;
      if (value <= step) return step;
    }
  }
  return most;
}

constexpr std::int64_t kDimParts = 4, kLeastDim = 32, kMostDim = 131'072;
constexpr std::int64_t kTokenParts = 2, kLeastTokens = 1024, kMostTokens = 262'144;
constexpr std::array<std::int64_t, 5> kScanTokens = {512, 4096, 16'384, 32'768, 262'144};
constexpr std::array<std::int64_t, 4> kSpreads = {1, 4, 16, 64};
constexpr std::int64_t kShortMean = 16, kLongMean = 512;
constexpr std::int64_t kLongestShortMean = 64;  // tokens

/// By ratio.
std::int64_t nearest(std::span<const std::int64_t> steps, double value) {
  return *std::ranges::min_element(
      steps, {}, [&](std::int64_t step) { return std::abs(std::log2(value / static_cast<double>(step))); });
}

double doublings(std::int64_t a, std::int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

}  // namespace

Bucket bucket_of(Operator op, const Workload& work) {
  const std::int64_t tokens = std::max<std::int64_t>(work.tokens, 1);
  Bucket bucket;
  bucket.dim = rounded_up(work.dim, kDimParts, kLeastDim, kMostDim);
  if (!is_scan(op)) {
    bucket.tokens = rounded_up(tokens, kTokenParts, kLeastTokens, kMostTokens);
    return bucket;
  }
  bucket.tokens = nearest(kScanTokens, static_cast<double>(tokens));
  const std::int64_t longest = std::clamp<std::int64_t>(work.longest, 1, tokens);
  bucket.spread = nearest(kSpreads, static_cast<double>(tokens) / static_cast<double>(longest));
  const std::int64_t sequences = std::clamp<std::int64_t>(work.sequences, 1, tokens);
  bucket.mean_length = tokens <= kLongestShortMean * sequences ? kShortMean : kLongMean;
  return bucket;
}

Workload representative(Operator op, const Bucket& bucket) {
  constexpr std::int64_t kSequenceLength = 512;  // the convolution does not depend on it
  if (!is_scan(op)) return {bucket.tokens, bucket.tokens / kSequenceLength, bucket.dim, kSequenceLength};
  // The last step is open above: what is measured lies in its lower part, so that it fits into small GPUs.
  const std::int64_t tokens = bucket.tokens == kScanTokens.back() ? bucket.tokens / 2 : bucket.tokens;
  const std::int64_t longest = tokens / bucket.spread;
  if (bucket.mean_length == kShortMean) return {tokens, tokens / kShortMean, bucket.dim, longest};
  constexpr std::int64_t kMeanOfLongest =
      3;  // the longest of real documents cut to a pack is about three times as long
  return {tokens, bucket.spread == 1 ? 1 : kMeanOfLongest * bucket.spread, bucket.dim, longest};
}

std::vector<Bucket> buckets_to_tune(Operator op, std::int64_t dim) {
  std::vector<Bucket> buckets;
  const std::int64_t stepped = bucket_of(op, {.dim = dim}).dim;
  if (!is_scan(op)) {
    for (std::int64_t power = kLeastTokens; power < kMostTokens; power *= 2) {
      for (std::int64_t part = 0; part < kTokenParts; ++part)
        buckets.push_back({stepped, power + power * part / kTokenParts});
    }
    buckets.push_back({stepped, kMostTokens});
    return buckets;
  }
  for (const std::int64_t tokens : kScanTokens) {
    for (const std::int64_t spread : kSpreads) {
      for (const std::int64_t mean_length : {kLongMean, kShortMean}) {
        const Bucket bucket{stepped, tokens, spread, mean_length};
        const Workload work = representative(op, bucket);
        const bool possible = work.sequences * work.longest >= work.tokens && bucket_of(op, work) == bucket;
        // Among many short sequences a long one is rare.
        const bool real = mean_length == kLongMean || spread == kSpreads.back();
        if (possible && real) buckets.push_back(bucket);
      }
    }
  }
  return buckets;
}

std::optional<double> distance(Operator op, const Bucket& a, const Bucket& b) {
  const double dim = doublings(a.dim, b.dim), tokens = doublings(a.tokens, b.tokens);
  if (dim > 1) return {};
  if (!is_scan(op)) return tokens > 1 ? std::nullopt : std::optional(dim + tokens);
  constexpr double kTokenStep = 3, kSpreadStep = 2;  // doublings
  const double spread = doublings(a.spread, b.spread);
  if (tokens > kTokenStep || spread > kSpreadStep) return {};
  return dim + tokens + spread + (a.mean_length == b.mean_length ? 0 : 1);
}

std::string text_of(const Bucket& bucket, Operator op) {
  std::string common = fmt::format("dim {}, tokens {}", bucket.dim, bucket.tokens);
  if (!is_scan(op)) return common;
  return fmt::format("{}, spread {}, mean length {}", common, bucket.spread, bucket.mean_length);
}

}  // namespace packjit
