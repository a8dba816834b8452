#include "tuning/tuning_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/source_digest.hpp"

namespace packjit {
namespace {

using SpaceOf = std::function<std::vector<Config>(const Spec&, const DeviceLimits&)>;

/// Targets of one Spec come again and again.
class Spaces {
 public:
  Spaces(const SpaceOf& make, DeviceLimits limits) : make_(make), limits_(std::move(limits)) {}

  const std::vector<Config>& operator[](const Spec& spec) {
    const auto known = std::ranges::find_if(spaces_, [&](const auto& space) { return space.first == spec; });
    if (known != spaces_.end()) return known->second;
    return spaces_.emplace_back(spec, make_(spec, limits_)).second;
  }

 private:
  const SpaceOf& make_;
  DeviceLimits limits_;
  std::vector<std::pair<Spec, std::vector<Config>>> spaces_;
};

bool is_current(const Entry& entry, const TrialBench& bench) {
  return entry.nvrtc == bench.nvrtc() && entry.driver == bench.driver() &&
         entry.source_digest == source_digest(entry.spec, entry.config);
}

/// Configs to begin with: of this run's entries, then of the store's, the nearest shape first, the same Spec before
/// another of the operator.
std::vector<Config> beginnings(const TuningTarget& target, std::span<const Entry> made, TuningStore& store) {
  std::vector<std::pair<double, const Config*>> near;
  const std::vector<Entry> stored = store.nearest(target.spec, target.bucket);
  for (const auto entries : {made, std::span<const Entry>(stored)}) {
    for (const Entry& entry : entries) {
      if (entry.spec.op != target.spec.op) continue;
      const std::optional<double> away = distance(target.spec.op, target.bucket, entry.bucket);
      constexpr double kOtherSpec = 1;
      if (away) near.emplace_back(*away + (entry.spec == target.spec ? 0 : kOtherSpec), &entry.config);
    }
  }
  std::ranges::stable_sort(near, {}, [](const auto& pair) { return pair.first; });
  constexpr std::size_t kMost = 6;
  std::vector<Config> configs;
  for (const auto& [away, config] : near) {
    if (configs.size() < kMost && std::ranges::find(configs, *config) == configs.end()) configs.push_back(*config);
  }
  return configs;
}

/// What the first of the open targets may use of the time left. All count the same, but for the first of each Spec: it
/// compiles what the others find in the cache.
double share_of_first(std::span<const TuningTarget> targets, std::span<const std::size_t> open, std::vector<Spec> met) {
  constexpr double kFirstOfSpec = 8;
  double first = 0, all = 0;
  for (const std::size_t i : open) {
    const bool is_new = std::ranges::find(met, targets[i].spec) == met.end();
    if (is_new) met.push_back(targets[i].spec);
    all += is_new ? kFirstOfSpec : 1;
    if (i == open.front()) first = all;
  }
  return first / all;
}

}  // namespace

std::string label_of(const TuningTarget& target) {
  std::string text = fmt::format("{} dim {}, {} tokens", name_of(target.spec.op), target.work.dim, target.work.tokens);
  if (is_scan(target.spec.op)) {
    text += fmt::format(" in {} sequences, longest {}{}", target.work.sequences, target.work.longest,
                        target.spec.values["checkpoints"] != 0 ? ", checkpoints" : "");
  }
  return text;
}

std::vector<TargetOutcome> tune_all(TrialBench& bench, std::span<const TuningTarget> targets, TuningStore& store,
                                    const TuningRunOptions& options, const std::function<double()>& seconds,
                                    const TuningRunEvents& events, const SpaceOf& space_of) {
  const double end = seconds() + options.seconds;
  Spaces spaces(space_of, {bench.gpu().arch, bench.gpu().shared_bytes_per_block});
  std::vector<TargetOutcome> outcomes(targets.size());
  std::vector<Entry> made;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    TargetOutcome& outcome = outcomes[i];
    outcome.before = store.best(targets[i].spec, targets[i].bucket, bench.gpu());
    if (outcome.before) made.push_back(*outcome.before);
    if (outcome.before && !options.again && is_current(*outcome.before, bench)) {
      outcome.kind = TargetOutcome::Kind::done_before;
      if (events.finished) events.finished(targets[i], outcome);
    } else {
      open.push_back(i);
    }
  }
  std::vector<Spec> met;
  for (std::size_t n = 0; n < open.size(); ++n) {
    const TuningTarget& target = targets[open[n]];
    TargetOutcome& outcome = outcomes[open[n]];
    const double begin = seconds();
    TuneOptions each = options.each;
    each.seconds = share_of_first(targets, std::span(open).subspan(n), met) * (end - begin);
    if (options.most_seconds > 0) each.seconds = std::min(each.seconds, options.most_seconds);
    each.grace_seconds = std::min(each.seconds, end - begin - each.seconds);
    if (each.seconds <= 0) {
      if (events.finished) events.finished(target, outcome);
      continue;
    }
    TuningKnowledge known;
    known.incumbent = store.in_use(target, bench.gpu());
    known.neighbours = beginnings(target, made, store);
    known.tried = store.tried(target);
    known.failed = [&](const Config& config, const std::string& digest) {
      return store.failed(failed_candidate(bench, target, config, digest, {}));
    };
    TuningEvents inner;
    inner.failed = [&](const FailedCandidate& failed) { store.add(failed); };
    inner.tried = [&](const TriedCandidate& tried) { store.add(target, tried); };
    if (events.progress) {
      inner.progress = [&](const std::string&, int done, int total) {
        events.progress(fmt::format("{}/{} {}", open[n] + 1, targets.size(), label_of(target)), done, total);
      };
    }
    outcome.result = tune(bench, target, spaces[target.spec], known, each, seconds, inner);
    outcome.seconds = seconds() - begin;
    outcome.kind = TargetOutcome::Kind::failed;
    if (outcome.result.entry) {
      outcome.kind = TargetOutcome::Kind::tuned;
      store.add(*outcome.result.entry);
      std::erase_if(made,
                    [&](const Entry& entry) { return entry.spec == target.spec && entry.bucket == target.bucket; });
      made.push_back(*outcome.result.entry);
    } else if (outcome.result.cut_short) {
      outcome.kind = TargetOutcome::Kind::no_time;
    }
    if (events.finished) events.finished(target, outcome);
    met.push_back(target.spec);
  }
  return outcomes;
}

}  // namespace packjit
