#include "packing/ranks.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "packing/longest_first.hpp"

namespace packjit {
namespace {

/// How many of a rank's next calls are looked at for one that suits the other ranks, and how often a call may be
/// passed.
constexpr std::size_t kCallsLookedAt = 32;

constexpr NamedRankDivision kDivisions[] = {{"balanced", RankDivision::balanced},
                                            {"round-robin", RankDivision::round_robin}};

/// The documents of each rank, in order of arrival.
std::vector<std::vector<std::int64_t>> deal_in_turn(std::int64_t documents, std::int64_t ranks) {
  std::vector<std::vector<std::int64_t>> dealt(static_cast<std::size_t>(ranks));
  for (std::int64_t i = 0; i < documents; ++i) dealt[static_cast<std::size_t>(i % ranks)].push_back(i);
  return dealt;
}

/// The same, with about as many tokens on each.
std::vector<std::vector<std::int64_t>> deal(std::span<const Document> documents, std::int64_t window,
                                            std::int64_t ranks) {
  using Load = std::pair<std::int64_t, std::int64_t>;  // tokens, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::int64_t rank = 0; rank < ranks; ++rank) least.emplace(0, rank);
  std::vector<std::vector<std::int64_t>> dealt(static_cast<std::size_t>(ranks));
  const auto count = static_cast<std::int64_t>(documents.size());
  const std::int64_t together = window * ranks;
  const auto length = [&](std::int64_t index) { return documents[static_cast<std::size_t>(index)].length; };
  for (std::int64_t first = 0; first < count; first += together) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = first; i < std::min(count, first + together); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return length(a) > length(b); });
    for (const std::int64_t index : order) {
      const auto [tokens, rank] = least.top();
      least.pop();
      least.emplace(tokens + length(index), rank);
      dealt[static_cast<std::size_t>(rank)].push_back(index);
    }
  }
  for (std::vector<std::int64_t>& indices : dealt) std::sort(indices.begin(), indices.end());
  return dealt;
}

/// The plan of some of the documents, with their numbers among all.
PackPlan plan_part(const PackMethod& method, std::span<const Document> documents,
                   const std::vector<std::int64_t>& chosen, const PackOptions& options) {
  PackPlan plan;
  if (chosen.empty()) {
    plan.method = method.name;
    plan.options = checked_options(options);
  } else {
    std::vector<Document> part;
    part.reserve(chosen.size());
    for (const std::int64_t index : chosen) part.push_back(documents[static_cast<std::size_t>(index)]);
    plan = method.plan(part, options);
    rename_documents(plan, chosen);
  }
  plan.documents = static_cast<std::int64_t>(documents.size());
  return plan;
}

std::int64_t tokens_of(const Call& call) {
  std::int64_t tokens = 0;
  for (const Row& row : call.rows) {
    for (const Piece& piece : row.pieces) tokens += piece.length;
  }
  return tokens;
}

std::int64_t longest_of(const Call& call) {
  std::int64_t longest = 0;
  for (const Row& row : call.rows) {
    for (const Piece& piece : row.pieces) longest = std::max(longest, piece.length);
  }
  return longest;
}

template <typename Condition>
bool any_piece(const Call& call, Condition condition) {
  return std::any_of(call.rows.begin(), call.rows.end(),
                     [&](const Row& row) { return std::any_of(row.pieces.begin(), row.pieces.end(), condition); });
}

/// A rank's calls that have no step yet: those that hand states over, in order, and the others.
class Upcoming {
 public:
  explicit Upcoming(std::vector<Call> calls) {
    for (Call& call : calls) {
      const bool is_linked = any_piece(call, [](const Piece& piece) { return piece.continues || piece.more; });
      (is_linked ? linked_ : single_).push_back(std::move(call));
    }
  }
  [[nodiscard]] std::size_t linked() const { return linked_.size(); }
  [[nodiscard]] std::size_t single() const { return single_.size(); }

  Call take_linked() {
    Call call = std::move(linked_.front());
    linked_.pop_front();
    return call;
  }
  /// One of the next calls, whichever has its longest piece nearest to `longest`.
  Call take_single(std::int64_t longest) {
    std::size_t best = 0;
    const auto distance = [&](std::size_t i) { return std::abs(longest_of(single_[i]) - longest); };
    const std::size_t looked_at = passed_ == kCallsLookedAt ? 1 : std::min(single_.size(), kCallsLookedAt);
    for (std::size_t i = 1; i < looked_at; ++i) {
      if (distance(i) < distance(best)) best = i;
    }
    passed_ = best == 0 ? 0 : passed_ + 1;
    const auto chosen = single_.begin() + static_cast<std::ptrdiff_t>(best);
    Call call = std::move(*chosen);
    single_.erase(chosen);
    return call;
  }
  [[nodiscard]] std::int64_t longest_of_next_single() const { return longest_of(single_.front()); }

 private:
  std::deque<Call> linked_, single_;
  std::size_t passed_ = 0;  ///< how often the first single call was
};

/// Gives all ranks linked calls at one step and single calls at another, evenly mixed: cut documents are long, so a
/// linked call's longest piece mostly has the length of the cut. Single calls are chosen by their longest piece.
void align_longest(std::vector<PackPlan>& plans) {
  std::size_t steps = 0;
  std::vector<Upcoming> ranks;
  ranks.reserve(plans.size());
  for (PackPlan& plan : plans) {
    steps = std::max(steps, plan.calls.size());
    ranks.emplace_back(std::exchange(plan.calls, {}));
  }
  std::size_t all = 0;
  std::size_t all_single = 0;
  for (const Upcoming& rank : ranks) {
    all += rank.linked() + rank.single();
    all_single += rank.single();
  }
  std::size_t single_steps = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    const bool is_single = (single_steps + 1) * all <= all_single * (step + 1);
    if (is_single) ++single_steps;
    std::int64_t wanted = 0;
    for (std::size_t i = 0; wanted == 0 && i < ranks.size(); ++i) {
      const Upcoming& rank = ranks[(step + i) % ranks.size()];
      if (rank.single() > 0 && (is_single || rank.linked() == 0)) wanted = rank.longest_of_next_single();
    }
    for (std::size_t r = 0; r < plans.size(); ++r) {
      Upcoming& rank = ranks[r];
      Call call;
      if (rank.single() > 0 && (is_single || rank.linked() == 0)) {
        call = rank.take_single(wanted);
      } else if (rank.linked() > 0) {
        call = rank.take_linked();
      }
      plans[r].calls.push_back(std::move(call));
    }
  }
}

/// Gives all ranks the same number of calls, the last ones of some without rows.
void fill_up(std::vector<PackPlan>& plans) {
  std::size_t steps = 0;
  for (const PackPlan& plan : plans) steps = std::max(steps, plan.calls.size());
  for (PackPlan& plan : plans) plan.calls.resize(steps);
}

}  // namespace

std::span<const NamedRankDivision> rank_divisions() { return kDivisions; }

RankDivision rank_division_named(std::string_view name) {
  std::string known;
  for (const NamedRankDivision& named : kDivisions) {
    if (named.name == name) return named.division;
    known += (known.empty() ? "" : ", ") + std::string(named.name);
  }
  throw std::invalid_argument("packing: there is no division '" + std::string(name) + "'; the divisions are " + known);
}

std::vector<PackPlan> plan_ranks(const PackMethod& method, std::span<const Document> documents,
                                 const PackOptions& options, std::int64_t ranks, RankDivision division) {
  if (ranks < 1 || ranks > kMaximumRanks) {
    throw std::invalid_argument("packing: ranks must be from 1 to " + std::to_string(kMaximumRanks) + ", found " +
                                std::to_string(ranks));
  }
  const PackPlan checked = begin_plan(method.name, documents, options);
  if (ranks == 1) return {method.plan(documents, options)};
  std::vector<PackPlan> plans;
  const bool is_balanced = division == RankDivision::balanced;
  for (const std::vector<std::int64_t>& chosen :
       is_balanced ? deal(documents, checked.options.window, ranks)
                   : deal_in_turn(static_cast<std::int64_t>(documents.size()), ranks)) {
    plans.push_back(plan_part(method, documents, chosen, options));
  }
  if (is_balanced) {
    align_longest(plans);
  } else {
    fill_up(plans);
  }
  return plans;
}

PackPlan joined(std::span<const PackPlan> plans) {
  PackPlan all = plans.front();
  for (const PackPlan& plan : plans.subspan(1)) {
    all.tokens += plan.tokens;
    all.options.rows_per_call += plan.options.rows_per_call;
    for (std::size_t step = 0; step < all.calls.size(); ++step) {
      const std::vector<Row>& rows = plan.calls[step].rows;
      all.calls[step].rows.insert(all.calls[step].rows.end(), rows.begin(), rows.end());
    }
  }
  return all;
}

RankBalance balance_of(std::span<const PackPlan> plans) {
  RankBalance balance;
  balance.ranks = static_cast<std::int64_t>(plans.size());
  balance.steps = static_cast<std::int64_t>(plans.front().calls.size());
  const PackOptions& options = plans.front().options;
  const std::int64_t slots_of_call = options.rows_per_call * options.pack_length;  // below 2^62
  if (__builtin_mul_overflow(balance.ranks * balance.steps, slots_of_call, &balance.slots)) {
    throw std::invalid_argument("packing: " + std::to_string(balance.ranks) + " ranks with " +
                                std::to_string(balance.steps) + " calls of " + std::to_string(options.rows_per_call) +
                                " rows of " + std::to_string(options.pack_length) +
                                " tokens each have more token slots than 64 bits count; lower the rows per call or the "
                                "pack length");
  }
  const auto [fewest, most] = std::minmax_element(
      plans.begin(), plans.end(), [](const PackPlan& a, const PackPlan& b) { return a.tokens < b.tokens; });
  balance.fewest_tokens = fewest->tokens;
  balance.most_tokens = most->tokens;
  for (std::size_t step = 0; step < plans.front().calls.size(); ++step) {
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> longest;
    for (const PackPlan& plan : plans) {
      const Call& call = plan.calls[step];
      if (call.rows.empty()) ++balance.calls_without_rows;
      tokens.push_back(tokens_of(call));
      longest.push_back(longest_of(call));
    }
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    balance.mean_token_spread += static_cast<double>(*high - *low) / static_cast<double>(slots_of_call);
    const auto [shortest, longest_of_all] = std::minmax_element(longest.begin(), longest.end());
    balance.mean_longest_spread +=
        static_cast<double>(*longest_of_all - *shortest) / static_cast<double>(*longest_of_all);
  }
  balance.mean_token_spread /= static_cast<double>(balance.steps);
  balance.mean_longest_spread /= static_cast<double>(balance.steps);
  return balance;
}

}  // namespace packjit
