#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "database/entry.hpp"
#include "tuning/batch_shape.hpp"

namespace packjit {

/// One Spec at one shape, for which the best Config is looked for.
struct TuningTarget {
  Spec spec;
  Bucket bucket;
  Workload work;     ///< of `batch`
  BatchShape batch;  ///< the lengths that are timed
};

/// What became of a candidate.
struct Trial {
  std::string failure;         ///< why it cannot win; empty where it may
  bool lost_worker = false;    ///< the process that tried it died or had to be killed
  NumericalCheck check;        ///< of check()
  std::vector<double> rounds;  ///< of time(): milliseconds a call, one value a round
  int lowest_mhz = 0, highest_mhz = 0;
};

/// A candidate left the process unable to go on: its kernel faulted, or wrote into guard zones. Thrown by benches that
/// try candidates in their own process.
struct CandidateFault : std::runtime_error {
  CandidateFault(std::optional<std::size_t> which, const std::string& what)
      : std::runtime_error(what), candidate(which) {}
  std::optional<std::size_t> candidate;  ///< its number in the call; none where it could be any of them
};

/// Where candidates are tried. Failures of candidates are values; what throws (EnvironmentError) ends the tuning.
/// Used by one thread.
class TrialBench {
 public:
  TrialBench() = default;
  TrialBench(const TrialBench&) = delete;
  TrialBench& operator=(const TrialBench&) = delete;
  virtual ~TrialBench() = default;

  [[nodiscard]] virtual const GpuProperties& gpu() const = 0;
  [[nodiscard]] virtual std::string nvrtc() const = 0;   ///< version
  [[nodiscard]] virtual std::string driver() const = 0;  ///< version

  [[nodiscard]] virtual int compiles_at_once() const { return 1; }
  /// Compiles candidates of one Spec, several at a time, ahead of trying them; the result of each in order. One that
  /// spills registers or that the compiler refuses has a failure.
  [[nodiscard]] virtual std::vector<Trial> compile(const Spec& spec, std::span<const Config> candidates) = 0;
  /// Runs the candidate on small inputs, outputs poisoned and guarded, and compares with the oracle; then, where
  /// `target` is given, once at its shape and compares with what the built-in Config gives there.
  [[nodiscard]] virtual Trial check(const Spec& spec, const Config& candidate, const TuningTarget* target) = 0;
  /// Times the candidates in turn, `rounds` times round, so that what changes meanwhile changes all of them: value i of
  /// each was measured in round i. Where the worker is lost, the candidate that it was working on has the failure; the
  /// others have all rounds, or no failure and fewer rounds where nobody timed them to the end.
  [[nodiscard]] virtual std::vector<Trial> time(const TuningTarget& target, std::span<const Config> candidates,
                                                int rounds) = 0;
  /// Called by the check() and time() of benches that try candidates in their own process, before each use of one, with
  /// its number in the call; may be empty.
  std::function<void(std::size_t)> on_use;

  /// What one call takes at least on this GPU, milliseconds: the largest of its limits.
  [[nodiscard]] virtual double limit_ms(const TuningTarget& target) = 0;
};

}  // namespace packjit
