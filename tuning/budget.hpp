#pragma once

#include <array>
#include <functional>

namespace packjit {

/// Seconds that are left, and what the next step will probably cost. A step costs something once and something for each
/// unit: as much a unit as the largest of the last few like it, and once the most that any of them took beyond that.
class Budget {
 public:
  enum class Step { compile, time, check };

  Budget(std::function<double()> clock, double seconds);

  [[nodiscard]] double total() const { return total_; }
  [[nodiscard]] double left() const { return end_ - clock_(); }
  /// Seconds for `units` of a step: candidates compiled one after another, rounds of one candidate, checks. 0 before
  /// the first.
  [[nodiscard]] double estimate(Step step, int units) const;
  /// Takes note of a step that began at `begin`, by now().
  void spent(Step step, int units, double begin);
  [[nodiscard]] double now() const { return clock_(); }

 private:
  struct Seen {
    int units = 0;
    double seconds = 0;
  };
  static constexpr std::size_t kRemembered = 4;
  std::function<double()> clock_;
  double total_, end_;
  std::array<std::array<Seen, kRemembered>, 3> seen_{};  // of each Step, the latest first
};

}  // namespace packjit
