#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tuning/trial.hpp"

namespace packjit {

/// How one target is tuned (docs/tuning.md). The defaults suit kernels of microseconds to milliseconds.
struct TuneOptions {
  double seconds = 30;         ///< kept to within the time that one candidate takes
  double grace_seconds = 0;    ///< what comparing the finalists may take all the same: that is cheap, and without
                               ///< it the search was for nothing
  std::uint64_t seed = 1;      ///< of the order of candidates
  bool exhaustive = false;     ///< all of the space, however large
  int exhaustive_limit = 128;  ///< Configs up to which all are tried anyway
  int sample = 64;             ///< drawn from a larger space; a third of them where neighbours are known
  int most_candidates = 256;   ///< of a larger space
  int batch = 16;              ///< compiled together, then timed in turn
  int quick_rounds = 2;        ///< of every candidate
  int finalists = 5;           ///< confirmed beside the incumbent and the built-in Config
  int confirm_rounds = 21;
  int most_confirm_rounds = 63;  ///< where fewer do not decide
  std::string date;              ///< of the Entry, YYYY-MM-DDThh:mm:ssZ
};

/// A candidate that was measured.
struct TriedCandidate {
  Config config;
  double ratio = 0;      ///< its time over that of the built-in Config: the median over rounds in which both ran
  double median_ms = 0;  ///< of its last rounds
  int rounds = 0;
};

/// What is known beforehand.
struct TuningKnowledge {
  std::optional<Config> incumbent;    ///< what calls get so far; else the built-in Config
  std::vector<Config> neighbours;     ///< what won for similar targets, tried first
  std::vector<TriedCandidate> tried;  ///< by a run that was ended; not timed again unless among the best
  std::function<bool(const Config&, const std::string& source_digest)> failed;  ///< not to be tried; may be empty
};

/// Called as soon as something is known; each may be empty. What they throw ends the tuning.
struct TuningEvents {
  std::function<void(const FailedCandidate&)> failed;
  std::function<void(const TriedCandidate&)> tried;  ///< after its first rounds
  std::function<void(const std::string& label, int done, int total)> progress;
};

struct TuningResult {
  std::optional<Entry> entry;         ///< what to use from now on: never slower than the built-in Config in its rounds
  std::string problem;                ///< why there is no entry
  std::vector<TriedCandidate> tried;  ///< in the order in which they were measured
  std::vector<FailedCandidate> failed;  ///< of this run
  bool cut_short = false;               ///< the budget ended before the search did
};

/// The record of a candidate of the target, tried on the bench's GPU with its versions.
[[nodiscard]] FailedCandidate failed_candidate(const TrialBench& bench, const TuningTarget& target,
                                               const Config& config, const std::string& digest,
                                               const std::string& reason);

/// Looks for the fastest Config of `space` (search_space()) at the target's shape. Candidates are timed beside the
/// built-in Config, the best fourth again with more rounds, until few are left: those are confirmed in turn with the
/// incumbent and the built-in Config, and the incumbent stays unless is_faster() says otherwise. A winner has passed
/// TrialBench::check() at the target's shape. `seconds` is a clock that never goes back. Throws what the bench throws.
[[nodiscard]] TuningResult tune(TrialBench& bench, const TuningTarget& target, std::span<const Config> space,
                                const TuningKnowledge& known, const TuneOptions& options,
                                const std::function<double()>& seconds, const TuningEvents& events = {});

}  // namespace packjit
