#include "tuning/targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "packing/random.hpp"

namespace packjit {
namespace {

/// `count` lengths of 1 to `longest` that add up to `tokens`, in ascending order: quantiles of a log-normal
/// distribution, scaled.
std::vector<std::int64_t> spread_lengths(std::int64_t tokens, std::int64_t count, std::int64_t longest) {
  constexpr double kLogDeviation = 0.75;  // of real documents, as in lognormal_lengths()
  std::vector<double> weights;
  for (std::int64_t i = 0; i < count; ++i) {
    // The logistic curve is close enough to the normal one, and has a formula for its quantiles.
    const double quantile = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    constexpr double kLogisticDeviation = 1.814;  // pi / sqrt(3)
    weights.push_back(std::exp(kLogDeviation / kLogisticDeviation * std::log(quantile / (1 - quantile))));
  }
  std::vector<std::int64_t> lengths(weights.size());
  const auto sum_at = [&](double scale) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      lengths[i] = std::llround(std::clamp(scale * weights[i], 1.0, static_cast<double>(longest)));
    }
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  };
  double low = 0, high = 1;
  while (sum_at(high) < tokens) high *= 2;
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (sum_at(middle) < tokens ? low : high) = middle;
  }
  // Rounding leaves a few tokens too many or too few.
  for (std::int64_t left = tokens - sum_at(low); left != 0;) {
    for (std::size_t i = lengths.size(); i-- > 0 && left != 0;) {
      const std::int64_t step = left > 0 ? 1 : -1;
      if (lengths[i] + step < 1 || lengths[i] + step > longest) continue;
      lengths[i] += step;
      left -= step;
    }
  }
  return lengths;
}

/// What is used most, first; equal numbers keep their order.
std::tuple<std::ptrdiff_t, double, int> rank_of(const TuningTarget& target) {
  constexpr std::array<std::int64_t, 3> kUsualTokens = {32'768, 16'384, 4096};
  const Bucket& bucket = target.bucket;
  const auto tokens = std::ranges::find(kUsualTokens, bucket.tokens) - kUsualTokens.begin();
  constexpr double kUsualSpread = 16;  // a pack of documents
  const double spread = bucket.spread > 0 ? std::abs(std::log2(static_cast<double>(bucket.spread) / kUsualSpread)) : 0;
  constexpr std::int64_t kDocuments = 512;
  return {tokens, spread, bucket.mean_length == kDocuments || bucket.mean_length == 0 ? 0 : 1};
}

}  // namespace

BatchShape batch_of(const Workload& work) {
  if (work.sequences < 1 || work.longest < 1 || work.longest + work.sequences - 1 > work.tokens ||
      work.tokens > work.longest * work.sequences) {
    throw std::invalid_argument(
        fmt::format("making a batch: {} sequences of 1 to {} tokens, one of them the longest, cannot be {} tokens",
                    work.sequences, work.longest, work.tokens));
  }
  std::vector<std::int64_t> lengths;
  if (work.sequences > 1) lengths = spread_lengths(work.tokens - work.longest, work.sequences - 1, work.longest);
  lengths.push_back(work.longest);
  constexpr std::uint64_t kSeed = 1;
  SplitMix64 random(kSeed);
  shuffle(lengths, random);
  return {"bucket", work.tokens, {std::move(lengths)}};
}

Workload workload_of(const BatchShape& batch, std::int64_t dim) {
  return {.tokens = batch.tokens(), .sequences = batch.sequences(), .dim = dim, .longest = batch.longest()};
}

std::vector<Spec> specs_to_tune(Operator op, const OperatorChoices& choices) {
  std::vector<Spec> specs;
  for (const Variant& variant : variants_of(spec_for(op, choices))) specs.push_back(variant.spec);
  return specs;
}

std::vector<TuningTarget> targets_of_buckets(std::span<const Operator> ops, std::span<const std::int64_t> dims,
                                             const OperatorChoices& choices) {
  std::vector<TuningTarget> targets;
  for (const std::int64_t dim : dims) {
    for (const Operator op : ops) {
      for (const Spec& spec : specs_to_tune(op, choices)) {
        for (const Bucket& bucket : buckets_to_tune(op, dim)) {
          const Workload work = representative(op, bucket);
          targets.push_back({spec, bucket, work, batch_of(work)});
        }
      }
    }
  }
  std::ranges::stable_sort(targets, {}, rank_of);
  return targets;
}

std::vector<TuningTarget> targets_of_batch(const BatchShape& batch, std::span<const Operator> ops,
                                           std::span<const std::int64_t> dims, const OperatorChoices& choices) {
  std::vector<TuningTarget> targets;
  for (const std::int64_t dim : dims) {
    const Workload work = workload_of(batch, dim);
    for (const Operator op : ops) {
      for (const Spec& spec : specs_to_tune(op, choices)) targets.push_back({spec, bucket_of(op, work), work, batch});
    }
  }
  return targets;
}

}  // namespace packjit
