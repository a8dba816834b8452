#pragma once

#include <memory>

#include "runtime/cuda_device.hpp"
#include "tuning/trial.hpp"

namespace packjit {

/// Tries candidates on a GPU, in this process. A candidate that faults takes the process's use of the GPU with it, and
/// one that never ends is waited for forever: WorkerBench puts this into a process of its own.
class GpuBench final : public TrialBench {
 public:
  /// `compile_threads` at a time.
  GpuBench(std::unique_ptr<CudaDevice> device, unsigned compile_threads);
  ~GpuBench() override;

  [[nodiscard]] const GpuProperties& gpu() const override;
  [[nodiscard]] std::string nvrtc() const override;
  [[nodiscard]] std::string driver() const override;
  [[nodiscard]] int compiles_at_once() const override;
  [[nodiscard]] std::vector<Trial> compile(const Spec& spec, std::span<const Config> candidates) override;
  [[nodiscard]] Trial check(const Spec& spec, const Config& candidate, const TuningTarget* target) override;
  [[nodiscard]] std::vector<Trial> time(const TuningTarget& target, std::span<const Config> candidates,
                                        int rounds) override;
  [[nodiscard]] double limit_ms(const TuningTarget& target) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace packjit
