// A worker whose kernels are imagined: what becomes of a candidate is told by its number of threads of a block.
#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>

#include "tuning/worker_bench.hpp"

namespace packjit {
namespace {

class ImaginedBench final : public TrialBench {
 public:
  [[nodiscard]] const GpuProperties& gpu() const override { return gpu_; }
  [[nodiscard]] std::string nvrtc() const override { return "13.0"; }
  [[nodiscard]] std::string driver() const override { return "13.1"; }
  [[nodiscard]] std::vector<Trial> compile(const Spec&, std::span<const Config> candidates) override {
    std::vector<Trial> trials(candidates.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].values["block"] == 32) trials[i].failure = "spills registers";
      if (candidates[i].values["block"] == 96) std::raise(SIGKILL);
    }
    return trials;
  }
  [[nodiscard]] Trial check(const Spec&, const Config& candidate, const TuningTarget*) override {
    on_use(0);
    meet(candidate, 0);
    Trial trial;
    trial.check = {"imagined", 0.5};
    return trial;
  }
  [[nodiscard]] std::vector<Trial> time(const TuningTarget& target, std::span<const Config> candidates,
                                        int rounds) override {
    std::vector<Trial> trials(candidates.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      on_use(i);
      meet(candidates[i], i);
      trials[i].rounds.assign(static_cast<std::size_t>(rounds), 1e-3 * static_cast<double>(target.work.tokens));
    }
    // Only a fault later on shows that somebody wrote where it must not.
    const bool alone = candidates.size() == 1;
    for (const Config& candidate : candidates) {
      if (candidate.values["block"] != 1024) continue;
      throw CandidateFault(alone ? std::optional<std::size_t>(0) : std::nullopt, "guard zone written");
    }
    return trials;
  }
  [[nodiscard]] double limit_ms(const TuningTarget& target) override { return static_cast<double>(target.work.dim); }

 private:
  static void meet(const Config& candidate, std::size_t number) {
    switch (candidate.values["block"]) {
      case 64:
        std::raise(SIGSEGV);
        break;
      case 256:
        std::this_thread::sleep_for(std::chrono::hours(1));
        break;
      case 512:
        throw CandidateFault(number, "the GPU failed: an illegal address");
      default:
        break;
    }
  }
  GpuProperties gpu_{"Imagined", "sm_90", 132, 232'448, 52'428'800, 3201};
};

}  // namespace
}  // namespace packjit

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "without-gpu") {
    std::cerr << "no GPU here\n";
    return 3;
  }
  if (argc > 1 && std::string(argv[1]) == "chatty") {
    std::cout << "loading modules\n";
    return 0;
  }
  packjit::ImaginedBench bench;
  packjit::serve_trials(bench, std::cin, std::cout);
}
