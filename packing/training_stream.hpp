#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// Place of arrival -> document, of one epoch: a permutation that depends on seed and epoch only.
[[nodiscard]] std::vector<std::int64_t> arrival_order(std::int64_t documents, std::uint64_t seed, std::int64_t epoch);
/// The documents in an order of arrival.
[[nodiscard]] std::vector<Document> in_order(std::span<const Document> documents,
                                             const std::vector<std::int64_t>& order);

/// With another seed for each epoch, so that rows that leave together do not keep their order either.
[[nodiscard]] PackOptions options_of_epoch(const PackOptions& options, std::int64_t epoch);

/// Where a rank stands between two calls; three numbers to keep with a checkpoint of the model. The same for all ranks.
struct StreamPosition {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  ///< calls of this epoch that are done
  /// Of the lengths, breaks, method, options and number of ranks: a position has no meaning for other ones.
  std::uint64_t fingerprint = 0;
  friend bool operator==(const StreamPosition&, const StreamPosition&) = default;
};

/// The calls of one rank, epoch after epoch, each with the documents in another order. The ranks need not talk to each
/// other: each computes the plan of an epoch for all of them, when the epoch begins. Every document is on one rank once
/// an epoch. It holds the documents it was given and one epoch's calls of its rank. Not for several threads at once.
class TrainingStream {
 public:
  /// Throws std::invalid_argument for options, documents or ranks out of range.
  TrainingStream(std::vector<Document> documents, const PackMethod& method, const PackOptions& options,
                 std::int64_t ranks = 1, std::int64_t rank = 0);

  /// The next call of this rank, of the next epoch where this one is done. It has no rows where other ranks still have
  /// some: the rank then takes part in the step with padding only.
  [[nodiscard]] Call next();

  [[nodiscard]] StreamPosition position() const { return position_; }
  /// Continues where a stream of the same documents, method, options and number of ranks stood. Throws
  /// std::invalid_argument for a position of other ones, or beyond its epoch.
  void resume(const StreamPosition& position);
  /// Calls of each rank in the current epoch.
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(calls_.size()); }

 private:
  void begin_epoch(std::int64_t epoch);

  std::vector<Document> documents_;
  const PackMethod* method_;
  PackOptions options_;
  std::int64_t ranks_, rank_;
  StreamPosition position_;
  std::vector<Call> calls_;  ///< of the current epoch
};

}  // namespace packjit
