#pragma once

#include <string>
#include <vector>

#include "cli/bench_report.hpp"
#include "tuning/batch_shape.hpp"
#include "tuning/measure.hpp"
#include "tuning/operator_choices.hpp"

namespace packjit {

/// What all rows of a report share.
struct Bench {
  Instruments& instruments;
  const BatchShape& shape;
  OperatorChoices choices;
  std::vector<std::string> settings;  ///< of with_settings()
  std::uint64_t seed = 1;
  double bytes_per_second = 0;  ///< of a copy
};

/// The lengths as they lie in the rows of the shape, one call.
[[nodiscard]] BenchRow packed_row(const Bench& bench, Operator op, const Variant& variant);
/// Each sequence in a row as long as the longest, one call that computes the padding too. Skipped, with the reason,
/// where the device has too little memory.
[[nodiscard]] BenchRow padded_row(const Bench& bench, Operator op, const Variant& variant);
/// A call for each sequence, on its part of the tensors; maps and views are made beforehand. Every call writes the
/// sums over all tokens (dA, dweight...) anew; adding them up over sequences is not included.
[[nodiscard]] BenchRow one_by_one_row(const Bench& bench, Operator op, const Variant& variant);
/// The scan as training runs it: the forward, then the backward, with all that either of them saves, computes again,
/// fills and sums.
[[nodiscard]] BenchRow together_row(const Bench& bench, const Variant& forward, const Variant& backward);

/// Whether `needed` bytes fit on a device of `memory` bytes, of which some are always taken by others.
[[nodiscard]] bool fits_in_memory(std::int64_t needed, std::int64_t memory);

}  // namespace packjit
