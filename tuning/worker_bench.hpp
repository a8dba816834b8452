#pragma once

#include <iosfwd>
#include <memory>

#include "tuning/trial.hpp"
#include "tuning/worker_process.hpp"

namespace packjit {

struct WorkerSettings {
  std::vector<std::string> command;            ///< the program that serves trials, and its arguments
  std::chrono::milliseconds start{120'000};    ///< until it has opened the GPU
  std::chrono::milliseconds compile{600'000};  ///< until a batch of candidates is compiled
  std::chrono::milliseconds use{20'000};       ///< for one use of a candidate: longer, and it counts as hanging
};

/// Tries candidates in another process, so that a fault or a hang costs one candidate: the process is started again
/// and goes on with the others. What cannot be blamed on a candidate throws EnvironmentError.
class WorkerBench final : public TrialBench {
 public:
  /// Starts the process. Throws EnvironmentError with what it said where it has no GPU.
  explicit WorkerBench(WorkerSettings settings);
  ~WorkerBench() override;

  [[nodiscard]] const GpuProperties& gpu() const override { return gpu_; }
  [[nodiscard]] std::string nvrtc() const override { return nvrtc_; }
  [[nodiscard]] std::string driver() const override { return driver_; }
  [[nodiscard]] int compiles_at_once() const override { return compiles_at_once_; }
  [[nodiscard]] std::vector<Trial> compile(const Spec& spec, std::span<const Config> candidates) override;
  [[nodiscard]] Trial check(const Spec& spec, const Config& candidate, const TuningTarget* target) override;
  [[nodiscard]] std::vector<Trial> time(const TuningTarget& target, std::span<const Config> candidates,
                                        int rounds) override;
  [[nodiscard]] double limit_ms(const TuningTarget& target) override;

 private:
  struct Answer;
  void start();
  [[nodiscard]] Answer ask(const nlohmann::json& question, std::chrono::milliseconds within);

  WorkerSettings settings_;
  std::unique_ptr<WorkerProcess> process_;
  GpuProperties gpu_;
  std::string nvrtc_, driver_;
  int compiles_at_once_ = 1;
};

/// The other side: answers the questions of a WorkerBench until `in` ends, or until a candidate has made the bench
/// unusable, which the last answer says.
void serve_trials(TrialBench& bench, std::istream& in, std::ostream& out);

}  // namespace packjit
