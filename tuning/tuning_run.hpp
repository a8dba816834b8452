#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/search_space.hpp"
#include "tuning/tuner.hpp"

namespace packjit {

/// Where results are kept: what was added is there again after the process was killed, but for what was being added.
class TuningStore {
 public:
  TuningStore() = default;
  TuningStore(const TuningStore&) = delete;
  TuningStore& operator=(const TuningStore&) = delete;
  virtual ~TuningStore() = default;

  /// The Entry of exactly this Spec and bucket on a GPU of the model, whatever versions it was made with.
  [[nodiscard]] virtual std::optional<Entry> best(const Spec& spec, const Bucket& bucket, const GpuProperties& gpu) = 0;
  /// The Config that a call gets before the target is tuned; the built-in one where there is none.
  [[nodiscard]] virtual std::optional<Config> in_use(const TuningTarget& target, const GpuProperties& gpu) {
    const std::optional<Entry> entry = best(target.spec, target.bucket, gpu);
    return entry ? std::optional(entry->config) : std::nullopt;
  }
  /// Entries of similar shapes, the nearest first; what this run adds is known to it anyway.
  [[nodiscard]] virtual std::vector<Entry> nearest(const Spec& /*spec*/, const Bucket& /*bucket*/) { return {}; }
  /// Whether an equal candidate is on record: everything but its reason and measured shape.
  [[nodiscard]] virtual bool failed(const FailedCandidate& candidate) = 0;
  virtual void add(const Entry& entry) = 0;
  virtual void add(const FailedCandidate& failed) = 0;

  /// Candidates measured for a target that has no Entry yet, so that a run that was killed goes on where it was. A
  /// store that keeps none loses what was measured of the target in flight.
  virtual void add(const TuningTarget& /*target*/, const TriedCandidate& /*tried*/) {}
  [[nodiscard]] virtual std::vector<TriedCandidate> tried(const TuningTarget& /*target*/) { return {}; }
};

struct TuningRunOptions {
  TuneOptions each;         ///< of a target; its `seconds` and `grace_seconds` are not read
  double seconds = 900;     ///< of all targets
  double most_seconds = 0;  ///< of one target; 0: whatever its share is
  bool again = false;       ///< also targets that are done
};

/// What became of a target.
struct TargetOutcome {
  enum class Kind { tuned, done_before, no_time, failed };
  Kind kind = Kind::no_time;
  TuningResult result;          ///< empty unless tuned or failed
  std::optional<Entry> before;  ///< the Entry that the store had
  double seconds = 0;
};

struct TuningRunEvents {
  std::function<void(const std::string& label, int done, int total)> progress;
  std::function<void(const TuningTarget&, const TargetOutcome&)> finished;
};

/// "ssm_pack_fwd dim 4096, 32768 tokens in 48 sequences, longest 2048": a target, for people.
[[nodiscard]] std::string label_of(const TuningTarget& target);

/// Tunes one target after the other. A target is done where the store has an Entry made with the same versions and the
/// same source. The seconds left are shared by the targets left, eight parts to the first of a Spec, which compiles
/// for the others, and one to each other; what one does not need, others have. Ends
/// early, with `no_time`, where they are used up: the same call goes on from there. Outcomes are in the order of the
/// targets. Throws what the bench and the store throw.
[[nodiscard]] std::vector<TargetOutcome> tune_all(
    TrialBench& bench, std::span<const TuningTarget> targets, TuningStore& store, const TuningRunOptions& options,
    const std::function<double()>& seconds, const TuningRunEvents& events = {},
    const std::function<std::vector<Config>(const Spec&, const DeviceLimits&)>& space_of = search_space);

}  // namespace packjit
