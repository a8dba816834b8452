#include "tuning/finals.hpp"

#include <algorithm>

#include "tuning/comparison.hpp"

namespace packjit {

Finals::Finals(const Config& built_in, const Config& incumbent, std::span<const Config> others)
    : incumbent_(incumbent) {
  members_.push_back({built_in, {}});
  for (const Config& config : others) members_.push_back({config, {}});
}

std::vector<Config> Finals::running() const {
  std::vector<Config> configs;
  for (const Member& member : members_) {
    if (member.runs) configs.push_back(member.config);
  }
  return configs;
}

std::vector<FailedRun> Finals::add(std::span<const Trial> trials, int rounds) {
  std::vector<FailedRun> failed;
  bool whole = true;
  std::size_t next = 0;
  std::vector<std::pair<Member*, const Trial*>> finished;
  for (Member& member : members_) {
    if (!member.runs) continue;
    const Trial& trial = trials[next++];
    if (!trial.failure.empty()) {
      member.runs = false;
      failed.push_back({member.config, trial.failure});
    } else {
      whole = whole && std::ssize(trial.rounds) == rounds;
      finished.emplace_back(&member, &trial);
    }
  }
  lost_ = whole || !failed.empty() ? 0 : lost_ + 1;
  if (!whole) return failed;
  for (const auto& [member, trial] : finished) {
    member->rounds.insert(member->rounds.end(), trial->rounds.begin(), trial->rounds.end());
  }
  rounds_ += rounds;
  return failed;
}

const Finals::Member& Finals::incumbent() const {
  const auto found = std::ranges::find_if(members_, [&](const Member& m) { return m.config == incumbent_ && m.runs; });
  return found == members_.end() ? members_.front() : *found;
}

bool Finals::undecided() const {
  if (rounds_ == 0) return false;
  // The fastest decides: where it has won, it does not matter who else might.
  const Member& champion = incumbent();
  const Comparison* best = nullptr;
  std::vector<Comparison> comparisons;
  for (const Member& member : members_) {
    if (member.runs && &member != &champion) comparisons.push_back(compare(member.rounds, champion.rounds));
  }
  for (const Comparison& one : comparisons) {
    if (best == nullptr || one.ratio < best->ratio) best = &one;
  }
  return best != nullptr && is_undecided(*best);
}

std::vector<Config> Finals::order() const {
  const Member& built_in = members_.front();
  const Member& champion = incumbent();
  std::vector<std::pair<double, const Member*>> faster;
  const auto beats_built_in = [&](const Member& member) {
    return rounds_ > 0 && compare(member.rounds, built_in.rounds).ratio < 1;
  };
  for (const Member& member : members_) {
    if (!member.runs || &member == &champion || &member == &built_in || rounds_ == 0) continue;
    const Comparison comparison = compare(member.rounds, champion.rounds);
    if (is_faster(comparison) && beats_built_in(member)) faster.emplace_back(comparison.ratio, &member);
  }
  std::ranges::stable_sort(faster, {}, [](const auto& pair) { return pair.first; });
  std::vector<Config> order;
  order.reserve(faster.size() + 2);
  for (const auto& [ratio, member] : faster) order.push_back(member->config);
  if (&champion != &built_in && beats_built_in(champion)) order.push_back(champion.config);
  order.push_back(built_in.config);
  return order;
}

std::vector<double> Finals::rounds_of(const Config& config) const {
  const auto found = std::ranges::find_if(members_, [&](const Member& member) { return member.config == config; });
  return found == members_.end() ? std::vector<double>{} : found->rounds;
}

}  // namespace packjit
