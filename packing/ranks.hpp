#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// The most ranks that documents are divided over.
inline constexpr std::int64_t kMaximumRanks = 65536;

/// How documents come to ranks.
enum class RankDivision {
  balanced,    ///< by tokens and longest sequences, as plan_ranks() says
  round_robin  ///< in turn, as they arrive: what a sampler does that knows no lengths. To see what balancing gains
};
struct NamedRankDivision {
  std::string_view name;  ///< as on the command line: "round-robin"
  RankDivision division;
};
[[nodiscard]] std::span<const NamedRankDivision> rank_divisions();
/// Throws std::invalid_argument that lists the divisions there are.
[[nodiscard]] RankDivision rank_division_named(std::string_view name);

/// One plan a rank, computed alike by every rank, so that they need not talk to each other.
///
/// Documents are dealt out `window` * `ranks` at a time, longest first, each to the rank with the fewest tokens so far:
/// a document is whole on one rank, whose own calls hand its states over. Each rank's documents are then packed by the
/// method. Call number s of every plan runs at step s; calls that hand no states over are moved, by a few places, to
/// steps where the other ranks have a longest sequence of about the same length. Divided in turn, document i goes to
/// rank i % `ranks`, and each rank's calls stay in the method's order.
///
/// All plans have the same number of calls, and every call stands for `rows_per_call` rows: where it has fewer, the
/// others are padding, and at the end of an epoch a call may have none. `documents` of each plan is the number of all
/// documents, `tokens` those of the rank. With one rank the plan is that of the method.
[[nodiscard]] std::vector<PackPlan> plan_ranks(const PackMethod& method, std::span<const Document> documents,
                                               const PackOptions& options, std::int64_t ranks,
                                               RankDivision division = RankDivision::balanced);

/// The plans of all ranks as one, whose call s has the rows of all ranks at step s, rank after rank.
[[nodiscard]] PackPlan joined(std::span<const PackPlan> plans);

/// How equal the ranks' work is. Throws std::invalid_argument where the slots do not fit into 64 bits.
struct RankBalance {
  std::int64_t ranks = 0, steps = 0;
  std::int64_t slots = 0;                           ///< tokens of all ranks and steps, padding included
  std::int64_t fewest_tokens = 0, most_tokens = 0;  ///< real tokens of a rank
  std::int64_t calls_without_rows = 0;              ///< of any rank, at the end
  double mean_token_spread = 0;  ///< of a step: most less fewest real tokens of a rank, as a share of its slots
  double mean_longest_spread =
      0;  ///< of a step: longest less shortest "longest piece of a rank", as a share of the former
};
[[nodiscard]] RankBalance balance_of(std::span<const PackPlan> plans);

}  // namespace packjit
