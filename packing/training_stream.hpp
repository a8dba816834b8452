#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/boundaries.hpp"
#include "packing/packing.hpp"
#include "packing/ranks.hpp"
#include "packing/statistics.hpp"

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
  /// Of the lengths, breaks, method, options, number of ranks and division: a position has no meaning for other ones.
  std::uint64_t fingerprint = 0;
  friend bool operator==(const StreamPosition&, const StreamPosition&) = default;
};

/// What one epoch costs, all ranks together, and how equal they are. Drift is counted from the epoch's order of
/// arrival.
struct EpochStatistics {
  PackStatistics packs;
  RankBalance balance;
};

/// The calls of one rank, epoch after epoch, each with the documents in another order. The ranks need not talk to each
/// other: each computes the plan of an epoch for all of them, when the epoch begins. Every document is on one rank once
/// an epoch. It holds the documents it was given and one epoch's calls of its rank. Not for several threads at once.
/// After an exception it is as it was before.
class TrainingStream {
 public:
  /// Throws std::invalid_argument for options, documents or ranks out of range.
  TrainingStream(std::vector<Document> documents, const PackMethod& method, const PackOptions& options,
                 std::int64_t ranks = 1, std::int64_t rank = 0, RankDivision division = RankDivision::balanced);

  /// The next call of this rank, of the next epoch where this one is done. It has no rows where other ranks still have
  /// some: the rank then takes part in the step with padding only. Valid until the next epoch begins.
  const Call& next();
  /// The call that next() will give.
  [[nodiscard]] const Call& upcoming();
  /// What the upcoming call takes over, with the epoch's steps as numbers of calls and slots of position_indices; in
  /// the order of the slots. Valid as the call is.
  [[nodiscard]] std::span<const StateHandover> upcoming_handovers();

  [[nodiscard]] StreamPosition position() const { return position_; }
  /// Continues where a stream of the same documents, method, options and number of ranks stood. Throws
  /// std::invalid_argument for a position of other ones, or beyond its epoch.
  void resume(const StreamPosition& position);
  /// Calls of each rank in the current epoch.
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(epoch_.calls.size()); }
  /// Of the current epoch, which it plans anew: as slow as the beginning of an epoch.
  [[nodiscard]] EpochStatistics statistics() const;

  [[nodiscard]] std::span<const Document> documents() const { return documents_; }
  /// As used: `cut` is never 0.
  [[nodiscard]] const PackOptions& options() const { return options_; }

 private:
  /// One rank's part of an epoch.
  struct Epoch {
    std::int64_t number = 0;
    std::vector<Call> calls;
    std::vector<StateHandover> handovers;
  };
  [[nodiscard]] Epoch planned(std::int64_t epoch) const;
  void begin(Epoch epoch);

  std::vector<Document> documents_;
  const PackMethod* method_;
  PackOptions options_;
  std::int64_t ranks_, rank_;
  RankDivision division_;
  StreamPosition position_;
  Epoch epoch_;  ///< the current one
};

}  // namespace packjit
