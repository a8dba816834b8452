#pragma once

#include <span>
#include <string>
#include <vector>

#include "tuning/trial.hpp"

namespace packjit {

struct FailedRun {
  Config config;
  std::string reason;
};

/// The last comparison of a target: the built-in Config, the incumbent and the best candidates in the same rounds.
class Finals {
 public:
  /// `others`: the candidates, and the incumbent where it is not the built-in Config.
  Finals(const Config& built_in, const Config& incumbent, std::span<const Config> others);

  /// What is to be timed next, the built-in Config first.
  [[nodiscard]] std::vector<Config> running() const;
  /// Takes what timing running() for `rounds` rounds gave, and returns what failed: it runs no more. Rounds in which
  /// not all of the others ran to the end do not count.
  std::vector<FailedRun> add(std::span<const Trial> trials, int rounds);

  [[nodiscard]] int rounds() const { return rounds_; }
  [[nodiscard]] bool built_in_runs() const { return members_.front().runs; }
  /// Rounds twice did not count though nothing failed.
  [[nodiscard]] bool stuck() const { return lost_ > 1; }
  /// Whether a candidate looks faster than the incumbent and the rounds do not suffice to say so.
  [[nodiscard]] bool undecided() const;

  /// Who wins, and who takes the place of a winner that is found to be wrong: candidates that are faster than the
  /// incumbent and not slower than the built-in Config, the fastest first; then the incumbent, unless it is slower than
  /// the built-in Config; then that.
  [[nodiscard]] std::vector<Config> order() const;
  [[nodiscard]] std::vector<double> rounds_of(const Config& config) const;

 private:
  struct Member {
    Config config;
    std::vector<double> rounds;
    bool runs = true;
  };
  [[nodiscard]] const Member& incumbent() const;

  std::vector<Member> members_;  // the built-in Config first
  Config incumbent_;
  int rounds_ = 0, lost_ = 0;
};

}  // namespace packjit
