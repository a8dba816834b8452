#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "packing/call_scheduler.hpp"
#include "packing/decreasing.hpp"
#include "packing/row_order.hpp"

namespace packjit {
namespace {

/// Group g holds lengths above 2^(g-1) and up to 2^g; all documents that are cut are in the group of the cut.
int group_of(std::int64_t length, std::int64_t cut) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::min(length, cut) - 1)));
}

bool hands_over(const Call& call) {
  return std::any_of(call.rows.begin(), call.rows.end(), [](const Row& row) {
    return std::any_of(row.pieces.begin(), row.pieces.end(), [](const Piece& piece) { return piece.more; });
  });
}

/// One list of calls, in which each group's calls keep their order: the next one is drawn from all that are left. A
/// call that hands states over is followed by the next of its group.
std::vector<Call> interleaved(std::vector<std::vector<Call>> groups, SplitMix64& random) {
  std::vector<Call> calls;
  std::uint64_t left = 0;
  for (const std::vector<Call>& group : groups) left += group.size();
  calls.reserve(left);
  std::vector<std::size_t> next(groups.size(), 0);
  while (left > 0) {
    std::uint64_t drawn = random.below(left);
    std::size_t g = 0;
    for (; drawn >= groups[g].size() - next[g]; ++g) drawn -= groups[g].size() - next[g];
    do {
      calls.push_back(std::move(groups[g][next[g]++]));
      --left;
    } while (hands_over(calls.back()));
  }
  return calls;
}

}  // namespace

PackPlan plan_length_groups(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("length-groups", documents, options);
  std::map<int, std::vector<std::int64_t>> members;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    members[group_of(documents[i].length, plan.options.cut)].push_back(static_cast<std::int64_t>(i));
  }
  SplitMix64 random(options.seed);
  std::vector<std::vector<Call>> groups;
  for (const auto& [group, chosen] : members) {
    CallScheduler scheduler(options.rows_per_call);
    std::vector<Row> rows = decreasing_rows(documents, chosen, plan.options, Fit::best);
    for (Row& row : leaving_order(std::move(rows), random)) scheduler.add(std::move(row));
    groups.push_back(scheduler.flush());
  }
  plan.calls = interleaved(std::move(groups), random);
  return plan;
}

}  // namespace packjit
