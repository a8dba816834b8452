#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "packing/random.hpp"
#include "tuning/trial.hpp"

namespace packjit::test {

/// Kernels whose times are known, measured with noise, on a clock that only their work moves.
class FakeBench : public TrialBench {
 public:
  using Model = std::function<double(const TuningTarget&, const Config&)>;
  using Predicate = std::function<bool(const Config&)>;

  explicit FakeBench(Model true_ms) : model(std::move(true_ms)) {
    gpu_.name = "Fake";
    gpu_.arch = "sm_90";
    gpu_.multiprocessors = 132;
    gpu_.shared_bytes_per_block = 227 * 1024;
  }

  [[nodiscard]] const GpuProperties& gpu() const override { return gpu_; }
  [[nodiscard]] std::string nvrtc() const override { return nvrtc_version; }
  [[nodiscard]] std::string driver() const override { return "555.42"; }
  [[nodiscard]] int compiles_at_once() const override { return 8; }

  [[nodiscard]] std::vector<Trial> compile(const Spec& /*spec*/, std::span<const Config> candidates) override {
    std::vector<Trial> trials(candidates.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      compiled.push_back(candidates[i].values.text());
      if (spills && spills(candidates[i])) trials[i].failure = "spills 16 bytes";
    }
    now += compile_seconds * std::ceil(static_cast<double>(candidates.size()) / compiles_at_once());
    work();
    return trials;
  }

  [[nodiscard]] Trial check(const Spec& /*spec*/, const Config& candidate, const TuningTarget* target) override {
    checked.emplace_back(candidate.values.text(), target != nullptr);
    now += check_seconds;
    work();
    Trial trial;
    trial.check = {"fake oracle", 0.25};
    if (wrong && wrong(candidate)) trial.failure = "out is 0.5 away";
    if (target != nullptr && wrong_at_shape && wrong_at_shape(candidate)) trial.failure = "the last tokens are missing";
    return trial;
  }

  [[nodiscard]] std::vector<Trial> time(const TuningTarget& target, std::span<const Config> candidates,
                                        int rounds) override {
    ++time_calls;
    std::vector<Trial> trials(candidates.size());
    std::size_t lost = candidates.size();
    for (int round = 0; round < rounds && lost == candidates.size(); ++round) {
      const double drift = 1 + drift_share * std::sin(0.7 * ++rounds_seen_);
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        if (crashes && crashes(candidates[i])) {
          lost = i;
          break;
        }
        const double ms = model(target, candidates[i]) * drift * std::exp(noise * normal());
        trials[i].rounds.push_back(ms);
        trials[i].lowest_mhz = 1900;
        trials[i].highest_mhz = 1980;
        now += round_seconds + ms / 1000;
      }
    }
    for (const Config& config : candidates) timed.insert(config.values.text());
    if (lost < candidates.size()) {
      trials[lost].failure = "the worker ended with signal 11";
      trials[lost].lost_worker = true;
      now += restart_seconds;
      // Nobody timed the others to the end.
      for (std::size_t i = 0; i < candidates.size(); ++i) trials[i].rounds.clear();
    }
    work();
    return trials;
  }

  [[nodiscard]] double limit_ms(const TuningTarget& /*target*/) override { return 0.001; }

  [[nodiscard]] std::function<double()> clock() {
    return [this] { return now; };
  }
  void set_seed(std::uint64_t seed) { random_ = SplitMix64(seed); }

  Model model;
  Predicate spills, wrong, wrong_at_shape, crashes;
  double noise = 0, drift_share = 0;
  double now = 1000, compile_seconds = 1, check_seconds = 0.2, round_seconds = 0.002, restart_seconds = 2;
  std::string nvrtc_version = "12.4";
  std::function<void()> at_work;  ///< called in each of the above
  std::vector<std::string> compiled;
  std::vector<std::pair<std::string, bool>> checked;  ///< whether at the target's shape
  std::set<std::string> timed;
  int time_calls = 0;

 private:
  void work() const {
    if (at_work) at_work();
  }
  double normal() {
    const auto uniform = [&] { return (static_cast<double>(random_.next() >> 11) + 0.5) * 0x1p-53; };
    return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
  }

  GpuProperties gpu_;
  SplitMix64 random_{1};
  int rounds_seen_ = 0;
};

/// Milliseconds of a forward scan that is fastest, at `best_ms`, with block 256, 4 lanes, tiles of 32 tokens, accesses
/// of 8 elements, copies and 3 blocks; each doubling away from that costs 10 to 20 %.
inline FakeBench::Model scan_model(double best_ms) {
  return [best_ms](const TuningTarget&, const Config& config) {
    const auto away = [&](std::string_view field, double best) {
      return std::abs(std::log2(config.values[field] / best));
    };
    double ms = best_ms * (1 + 0.1 * away("block", 256)) * (1 + 0.2 * away("lanes", 4)) *
                (1 + 0.12 * away("tile_tokens", 32)) * (1 + 0.1 * away("vector", 8)) *
                (1 + 0.1 * away("min_blocks", 3));
    if (config.values["copies"] == 0) ms *= 1.15;
    if (config.values["segments"] != 0) ms *= 1.3;
    return ms;
  };
}

}  // namespace packjit::test
