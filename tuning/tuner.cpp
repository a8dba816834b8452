#include "tuning/tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "database/builtin_config.hpp"
#include "runtime/source_digest.hpp"
#include "tuning/budget.hpp"
#include "tuning/candidates.hpp"
#include "tuning/comparison.hpp"
#include "tuning/finals.hpp"
#include "tuning/measure.hpp"

namespace packjit {
namespace {

using Step = Budget::Step;

double median_of(std::vector<double> values) { return spread_of(values).median_ms; }

/// A candidate of the search, with the ratio of each round in which it ran beside the built-in Config.
struct Ranked {
  TriedCandidate tried;
  std::vector<double> ratios;
  bool compiled = false;  // in this run
  bool alive = true;
};

class Search {
 public:
  Search(TrialBench& bench, const TuningTarget& target, std::span<const Config> space, const TuningKnowledge& known,
         const TuneOptions& options, const std::function<double()>& seconds, const TuningEvents& events)
      : bench_(bench),
        target_(target),
        space_(space),
        known_(known),
        options_(options),
        events_(events),
        budget_(seconds, options.seconds),
        limits_{bench.gpu().arch, bench.gpu().shared_bytes_per_block},
        random_(options.seed),
        built_in_(builtin_config(target.spec, bench.gpu().arch, target.work)),
        incumbent_(built_in_) {}

  TuningResult run() {
    if (begin_with_the_known()) {
      search();
      halve();
      decide();
    }
    for (const Ranked& one : ranked_) result_.tried.push_back(one.tried);
    result_.cut_short = result_.cut_short || budget_.left() < 0;
    return std::move(result_);
  }

 private:
  /// The built-in Config has to work, or there is nothing to compare with; the incumbent may have stopped to.
  bool begin_with_the_known() {
    if (budget_.left() <= 0) {
      result_.cut_short = true;
      result_.problem = "no time was left to measure the built-in Config";
      return false;
    }
    seen_.insert(built_in_.values.text());
    const std::string wrong = works(built_in_, true);
    if (!wrong.empty()) {
      result_.problem = fmt::format("the built-in Config cannot be measured: {}", wrong);
      return false;
    }
    if (known_.incumbent && *known_.incumbent != built_in_ && !refusal(target_.spec, *known_.incumbent, limits_)) {
      seen_.insert(known_.incumbent->values.text());
      if (works(*known_.incumbent, false).empty()) incumbent_ = *known_.incumbent;
    }
    std::vector<Config> first = {built_in_};
    if (incumbent_ != built_in_) first.push_back(incumbent_);
    std::vector<Trial> trials = time(first, options_.quick_rounds);
    if (trials.front().failure.empty() && trials.front().rounds.empty()) trials = time(first, options_.quick_rounds);
    if (!trials.front().failure.empty() || trials.front().rounds.empty()) {
      record_failure(built_in_, trials.front().failure);
      result_.problem = fmt::format("the built-in Config cannot be measured: {}", trials.front().failure);
      return false;
    }
    built_in_rounds_ = trials.front().rounds;
    note(built_in_, trials.front(), trials.front());
    if (incumbent_ == built_in_) return true;
    if (!trials.back().failure.empty() || trials.back().rounds.empty()) {
      if (!trials.back().failure.empty()) record_failure(incumbent_, trials.back().failure);
      incumbent_ = built_in_;
    } else {
      note(incumbent_, trials.back(), trials.front());
    }
    return true;
  }

  /// Compiles it and, where `checked`, checks it; why it failed, and that on record.
  std::string works(const Config& config, bool checked) {
    Trial trial = compile(std::span(&config, 1)).front();
    if (trial.failure.empty() && checked) trial = check(config, &target_);
    if (!trial.failure.empty()) record_failure(config, trial.failure);
    return trial.failure;
  }

  void search() {
    for (const TriedCandidate& tried : known_.tried) {
      if (!seen_.insert(tried.config.values.text()).second || refusal(target_.spec, tried.config, limits_)) continue;
      ranked_.push_back({.tried = tried, .ratios = {tried.ratio}});
    }
    // In an order that does not depend on the shape, so that targets of one Spec try what was compiled before; a part
    // of it comes from everywhere.
    std::vector<Config> shuffled(space_.begin(), space_.end());
    SplitMix64 order(options_.seed);
    shuffle(shuffled, order);
    std::vector<Config> useful;
    std::ranges::copy_if(shuffled, std::back_inserter(useful),
                         [&](const Config& c) { return fits_shape(c, target_.work); });
    const bool all = options_.exhaustive || std::ssize(useful) <= options_.exhaustive_limit;
    std::vector<Config> rest;
    if (!all) {
      const int sample = known_.neighbours.empty() ? options_.sample : options_.sample / 3;
      const auto end = useful.begin() + std::min<std::ptrdiff_t>(sample, std::ssize(useful));
      rest.assign(end, useful.end());
      useful.erase(end, useful.end());
    }
    // First what won for similar targets, then what differs in one field from what is used now: most of a large space
    // is far from both, and slow.
    std::vector<Config> first = known_.neighbours;
    if (!all) {
      const std::vector<Config> around = neighbours(target_.spec, incumbent_, limits_, target_.work, 0, order);
      first.insert(first.end(), around.begin(), around.end());
    }
    useful.insert(useful.begin(), first.begin(), first.end());
    planned_ = static_cast<int>(all ? useful.size() : static_cast<std::size_t>(options_.most_candidates));
    if (!try_all(useful, all) || all) return;
    // Then around the best so far, with a few from elsewhere, until that brings nothing any more.
    constexpr int kPatience = 3;
    for (int idle = 0; idle < kPatience;) {
      const double before = ranking().front()->tried.ratio;
      const std::vector<Config> next = generation(rest);
      if (next.empty() || !try_all(next, false)) return;
      idle = ranking().front()->tried.ratio < before * (1 - kLeastGain) ? 0 : idle + 1;
    }
  }

  /// A batch of new Configs: neighbours of the best, then of the next best, and a fourth of `rest`, which gives them
  /// up.
  std::vector<Config> generation(std::vector<Config>& rest) {
    constexpr int kLeaders = 3, kPairs = 8;
    const auto size = static_cast<std::size_t>(options_.batch), elsewhere = size / 4;
    std::vector<Config> batch;
    const auto take = [&](Config&& config) {
      const bool fresh = !seen_.contains(config.values.text()) && std::ranges::find(batch, config) == batch.end();
      if (fresh) batch.push_back(std::move(config));
    };
    std::vector<const Ranked*> leaders = ranking();
    leaders.resize(std::min<std::size_t>(leaders.size(), kLeaders));
    for (const Ranked* leader : leaders) {
      for (Config& config : neighbours(target_.spec, leader->tried.config, limits_, target_.work, kPairs, random_)) {
        if (batch.size() < size - elsewhere) take(std::move(config));
      }
    }
    for (; !rest.empty() && batch.size() < size; rest.pop_back()) take(std::move(rest.back()));
    return batch;
  }

  /// False where the search has to end: no time, or enough candidates.
  bool try_all(std::span<const Config> candidates, bool all) {
    std::size_t next = 0;
    while (next < candidates.size()) {
      if (!all && std::ssize(ranked_) >= options_.most_candidates) return false;
      const int most = affordable(options_.batch);
      if (most == 0) {
        result_.cut_short = true;
        return false;
      }
      std::vector<Config> batch;
      for (; next < candidates.size() && std::ssize(batch) < most; ++next) {
        const Config& config = candidates[next];
        if (!seen_.insert(config.values.text()).second) continue;
        if (refusal(target_.spec, config, limits_) || !fits_shape(config, target_.work)) continue;
        if (known_.failed && known_.failed(config, source_digest(target_.spec, config))) continue;
        batch.push_back(config);
      }
      if (!batch.empty()) try_batch(batch);
    }
    return true;
  }

  /// How many candidates may be compiled and timed so that the finals still fit.
  int affordable(int wanted) const {
    const double spare = budget_.left() - reserve();
    for (int n = wanted; n > 0; n = n == 1 ? 0 : n / 2) {
      if (compile_estimate(n) + budget_.estimate(Step::time, (n + 1) * options_.quick_rounds) <= spare) return n;
    }
    return 0;
  }

  double compile_estimate(int n) const {
    const int at_once = std::max(bench_.compiles_at_once(), 1);
    return budget_.estimate(Step::compile, (n + at_once - 1) / at_once);
  }

  /// Seconds for the finals, at most two thirds of all: beyond that they have fewer rounds.
  double reserve() const {
    const double finals = budget_.estimate(Step::time, (options_.finalists + 2) * options_.confirm_rounds) +
                          budget_.estimate(Step::check, 1);
    return std::min(finals, 2 * budget_.total() / 3);
  }

  void try_batch(std::span<const Config> batch) {
    std::vector<Config> compiled;
    const std::vector<Trial> images = compile(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (images[i].failure.empty()) {
        compiled.push_back(batch[i]);
      } else {
        record_failure(batch[i], images[i].failure);
      }
    }
    if (!compiled.empty()) time_beside_built_in(compiled, options_.quick_rounds);
  }

  /// Those that a lost worker left untimed get one more chance, each alone.
  void time_beside_built_in(std::span<const Config> candidates, int rounds, bool alone = false) {
    std::vector<Config> together = {built_in_};
    together.insert(together.end(), candidates.begin(), candidates.end());
    const std::vector<Trial> trials = time(together, rounds);
    std::vector<Config> again;
    for (std::size_t i = 1; i < together.size(); ++i) {
      const Trial& trial = trials[i];
      if (!trial.failure.empty()) {
        record_failure(together[i], trial.failure);
        if (Ranked* one = find(together[i])) one->alive = false;
      } else if (trial.rounds.empty() || trials.front().rounds.empty()) {
        again.push_back(together[i]);
      } else {
        note(together[i], trial, trials.front());
      }
    }
    if (alone) return;
    for (const Config& config : again) {
      if (budget_.left() <= 0) return;
      time_beside_built_in(std::span(&config, 1), rounds, true);
    }
  }

  /// The best fourth again, with more rounds each time, until there are as few as can be confirmed.
  void halve() {
    constexpr int kShare = 4, kMostTogether = 16;
    int rounds = 2 * options_.quick_rounds;
    std::size_t left = ranking().size();
    while (left > static_cast<std::size_t>(options_.finalists)) {
      left = std::max((left + kShare - 1) / kShare, static_cast<std::size_t>(options_.finalists));
      std::vector<Config> best;
      for (const Ranked* one : ranking()) {
        if (best.size() < left && one->tried.config != built_in_) best.push_back(one->tried.config);
      }
      for (std::size_t from = 0; from < best.size(); from += kMostTogether) {
        std::vector<Config> part(
            best.begin() + static_cast<std::ptrdiff_t>(from),
            best.begin() + static_cast<std::ptrdiff_t>(std::min(best.size(), from + kMostTogether)));
        const int runs = static_cast<int>(part.size() + 1) * rounds;
        if (budget_.estimate(Step::time, runs) + reserve() > budget_.left() || !compile_again(part)) {
          result_.cut_short = true;
          return;
        }
        std::erase_if(part, [&](const Config& config) { return !find(config)->alive; });
        if (!part.empty()) time_beside_built_in(part, rounds);
      }
      rounds *= 2;
    }
  }

  /// What an earlier run measured is not compiled in this one yet. False where there is no time for it.
  bool compile_again(std::span<const Config> candidates) {
    std::vector<Config> missing;
    for (const Config& config : candidates) {
      const Ranked* one = find(config);
      if (one != nullptr && one->alive && !one->compiled) missing.push_back(config);
    }
    if (missing.empty()) return true;
    if (compile_estimate(static_cast<int>(missing.size())) > budget_.left()) return false;
    const std::vector<Trial> images = compile(missing);
    for (std::size_t i = 0; i < missing.size(); ++i) {
      Ranked* one = find(missing[i]);
      one->compiled = one->alive = images[i].failure.empty();
      if (!one->alive) record_failure(missing[i], images[i].failure);
    }
    return true;
  }

  /// The best that compute the right thing on small inputs. Where there is no time to ask, that is asked of the winner
  /// only, and of the next where it is not.
  std::vector<Config> finalists() {
    std::vector<Config> chosen;
    std::vector<Config> best;
    for (const Ranked* one : ranking()) best.push_back(one->tried.config);
    for (const Config& config : best) {
      if (std::ssize(chosen) == options_.finalists) break;
      if (config == built_in_ || config == incumbent_) continue;
      if (!compile_again(std::span(&config, 1))) {
        result_.cut_short = true;
        break;
      }
      if (!find(config)->alive) continue;
      if (budget_.estimate(Step::check, 1) + reserve() <= budget_.left()) {
        if (const Trial trial = check(config, nullptr); !trial.failure.empty()) {
          find(config)->alive = false;
          record_failure(config, trial.failure);
          continue;
        }
      }
      chosen.push_back(config);
    }
    return chosen;
  }

  void decide() {
    std::vector<Config> others = finalists();
    if (incumbent_ != built_in_) others.insert(others.begin(), incumbent_);
    Finals finals(built_in_, incumbent_, others);
    const double end = budget_.now() + std::max(budget_.left(), options_.grace_seconds);
    while (finals.rounds() < options_.confirm_rounds ||
           (finals.undecided() && finals.rounds() < options_.most_confirm_rounds)) {
      constexpr int kTogether = 7;  // rounds
      const std::vector<Config> running = finals.running();
      if (running.size() == 1 && finals.rounds() > 0) break;  // nothing is left to compare with
      if (budget_.estimate(Step::time, static_cast<int>(running.size()) * kTogether) > end - budget_.now()) {
        result_.cut_short = result_.cut_short || finals.rounds() < options_.confirm_rounds;
        break;
      }
      const std::vector<Trial> trials = time(running, kTogether);
      for (const FailedRun& failed : finals.add(trials, kTogether)) {
        record_failure(failed.config, failed.reason);
        if (Ranked* one = find(failed.config)) one->alive = false;
      }
      if (!finals.built_in_runs()) {
        result_.problem = "the built-in Config failed while others were compared with it";
        return;
      }
      if (finals.stuck()) {
        result_.cut_short = true;
        break;
      }
    }
    // In the order of the rule, the first that is right at the target's shape.
    std::vector<Config> order = finals.order();
    if (finals.rounds() == 0 && incumbent_ != built_in_ && find(incumbent_)->tried.ratio < 1) {
      order.insert(order.begin(), incumbent_);
    }
    for (const Config& winner : order) {
      const Trial trial = winner == built_in_ ? built_in_check_ : check(winner, &target_);
      if (trial.failure.empty()) {
        write_entry(winner, trial, finals);
        return;
      }
      record_failure(winner, trial.failure);
      if (Ranked* one = find(winner)) one->alive = false;
    }
  }

  void write_entry(const Config& winner, const Trial& checked, const Finals& finals) {
    const auto statistics = [&](const Config& config) {
      std::vector<double> rounds = finals.rounds_of(config);
      if (rounds.empty()) rounds = config == built_in_ ? built_in_rounds_ : std::vector{find(config)->tried.median_ms};
      const auto count = static_cast<int>(rounds.size());
      const Times times = spread_of(rounds);
      return TimeStatistics{times.median_ms, times.low_ms, times.high_ms, count};
    };
    const TimeStatistics of_winner = statistics(winner);
    result_.entry = Entry{.spec = target_.spec,
                          .bucket = target_.bucket,
                          .config = winner,
                          .measured = target_.work,
                          .time = of_winner,
                          .built_in = statistics(built_in_),
                          .limit_share = bench_.limit_ms(target_) / of_winner.median_ms,
                          .lowest_mhz = lowest_mhz_,
                          .highest_mhz = highest_mhz_,
                          .tried = static_cast<int>(ranked_.size()),
                          .check = checked.check,
                          .gpu = bench_.gpu(),
                          .nvrtc = bench_.nvrtc(),
                          .driver = bench_.driver(),
                          .source_digest = source_digest(target_.spec, winner),
                          .date = options_.date};
  }

  // --- what the bench does, with its price ------------------------------------------------------------------------

  std::vector<Trial> compile(std::span<const Config> candidates) {
    progress("compiling");
    const double begin = budget_.now();
    std::vector<Trial> trials = bench_.compile(target_.spec, candidates);
    require_one_each(trials.size(), candidates.size());
    const int at_once = std::max(bench_.compiles_at_once(), 1);
    budget_.spent(Step::compile, (static_cast<int>(candidates.size()) + at_once - 1) / at_once, begin);
    return trials;
  }

  Trial check(const Config& config, const TuningTarget* target) {
    progress("checking");
    const double begin = budget_.now();
    Trial trial = bench_.check(target_.spec, config, target);
    // What a hang took says nothing about the next.
    if (!trial.lost_worker) budget_.spent(Step::check, 1, begin);
    if (config == built_in_) built_in_check_ = trial;
    return trial;
  }

  std::vector<Trial> time(std::span<const Config> candidates, int rounds) {
    progress("timing");
    const double begin = budget_.now();
    std::vector<Trial> trials = bench_.time(target_, candidates, rounds);
    require_one_each(trials.size(), candidates.size());
    const bool lost = std::ranges::any_of(trials, [](const Trial& trial) { return trial.lost_worker; });
    if (!lost) budget_.spent(Step::time, static_cast<int>(candidates.size()) * rounds, begin);
    for (const Trial& trial : trials) {
      if (trial.lowest_mhz > 0)
        lowest_mhz_ = lowest_mhz_ == 0 ? trial.lowest_mhz : std::min(lowest_mhz_, trial.lowest_mhz);
      highest_mhz_ = std::max(highest_mhz_, trial.highest_mhz);
    }
    return trials;
  }

  static void require_one_each(std::size_t found, std::size_t expected) {
    if (found == expected) return;
    throw std::logic_error(fmt::format("the trial bench gave {} results for {} candidates", found, expected));
  }

  // --- what is known ----------------------------------------------------------------------------------------------

  Ranked* find(const Config& config) {
    const auto found = std::ranges::find_if(ranked_, [&](const Ranked& one) { return one.tried.config == config; });
    return found == ranked_.end() ? nullptr : &*found;
  }

  /// Those that may still win, the best first.
  [[nodiscard]] std::vector<const Ranked*> ranking() const {
    std::vector<const Ranked*> order;
    for (const Ranked& one : ranked_) {
      if (one.alive) order.push_back(&one);
    }
    std::ranges::stable_sort(order, {}, [](const Ranked* one) { return one->tried.ratio; });
    return order;
  }

  void note(const Config& config, const Trial& trial, const Trial& built_in) {
    Ranked* one = find(config);
    const bool first = one == nullptr;
    if (first) one = &ranked_.emplace_back(Ranked{.tried = {.config = config}, .ratios = {}, .compiled = true});
    for (std::size_t i = 0; i < std::min(trial.rounds.size(), built_in.rounds.size()); ++i) {
      one->ratios.push_back(trial.rounds[i] / built_in.rounds[i]);
    }
    one->tried.ratio = median_of(one->ratios);
    one->tried.median_ms = median_of(trial.rounds);
    one->tried.rounds += static_cast<int>(trial.rounds.size());
    const bool told = std::ranges::find(known_.tried, config, &TriedCandidate::config) != known_.tried.end();
    if (first && !told && events_.tried) events_.tried(one->tried);
  }

  void record_failure(const Config& config, const std::string& reason) {
    const FailedCandidate failed =
        failed_candidate(bench_, target_, config, source_digest(target_.spec, config), reason);
    result_.failed.push_back(failed);
    if (events_.failed) events_.failed(failed);
  }

  void progress(std::string_view stage) const {
    if (!events_.progress) return;
    const auto done = static_cast<int>(ranked_.size() + result_.failed.size());
    events_.progress(fmt::format("{} {}", name_of(target_.spec.op), stage), done, std::max(planned_, done));
  }

  TrialBench& bench_;
  const TuningTarget& target_;
  std::span<const Config> space_;
  const TuningKnowledge& known_;
  const TuneOptions& options_;
  const TuningEvents& events_;
  Budget budget_;
  DeviceLimits limits_;
  SplitMix64 random_;
  Config built_in_, incumbent_;
  Trial built_in_check_;
  std::vector<double> built_in_rounds_;
  std::vector<Ranked> ranked_;
  std::set<std::string> seen_;
  int planned_ = 0, lowest_mhz_ = 0, highest_mhz_ = 0;
  TuningResult result_;
};

}  // namespace

FailedCandidate failed_candidate(const TrialBench& bench, const TuningTarget& target, const Config& config,
                                 const std::string& digest, const std::string& reason) {
  return {.spec = target.spec,
          .config = config,
          .measured = target.work,
          .reason = reason,
          .gpu = bench.gpu(),
          .nvrtc = bench.nvrtc(),
          .driver = bench.driver(),
          .source_digest = digest};
}

TuningResult tune(TrialBench& bench, const TuningTarget& target, std::span<const Config> space,
                  const TuningKnowledge& known, const TuneOptions& options, const std::function<double()>& seconds,
                  const TuningEvents& events) {
  return Search(bench, target, space, known, options, seconds, events).run();
}

}  // namespace packjit
