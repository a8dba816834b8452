#include "tuning/gpu_bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "checking/error_bounds.hpp"
#include "database/builtin_config.hpp"
#include "generator/generate.hpp"
#include "runtime/compile_cache.hpp"
#include "runtime/config_choice.hpp"
#include "runtime/driver.hpp"
#include "runtime/errors.hpp"
#include "runtime/image_choice.hpp"
#include "runtime/image_info.hpp"
#include "runtime/nvrtc.hpp"
#include "tuning/candidate_check.hpp"
#include "tuning/difference.hpp"
#include "tuning/measure.hpp"
#include "tuning/prepared_call.hpp"
#include "tuning/trial_json.hpp"

namespace packjit {
namespace {

constexpr int kNotedClocks = 32;          // rounds whose clock is kept
constexpr double kShortestRoundMs = 0.1;  // of calls between two events
constexpr int kMostCalls = 64;            // between two events
constexpr unsigned char kPoison = 0xFF;   // a NaN in every floating-point type
constexpr std::int64_t kGroups = 8;       // of B and C where the Spec has several
constexpr std::uint64_t kSeed = 1;

Sizes sizes_of(const TuningTarget& target) {
  const FieldValues& values = target.spec.values;
  OperatorChoices choices;
  choices.dim = target.work.dim;
  if (values.has("d_state")) choices.d_state = values["d_state"];
  if (values.has("conv_width")) choices.conv_width = values["conv_width"];
  Sizes sizes = batch_sizes(choices, target.batch);
  if (values.has("groups") && values["groups"] != 0) sizes.groups = kGroups;
  return sizes;
}

/// The first reason why an image must not be used.
std::string fault_of(const CompileResult& compiled) {
  if (!compiled.ok) return describe_failure(compiled);
  const ImageInfo image = read_image(compiled.cubin);
  std::vector<std::string> spilling;
  for (const KernelInfo& kernel : image.kernels) {
    if (!kernel.spill_free()) spilling.push_back(kernel.name);
  }
  return spilling.empty() ? "" : fmt::format("spills registers in {}", fmt::join(spilling, ", "));
}

}  // namespace

struct GpuBench::State {
  /// Tensors of a target and what else its calls need.
  struct Prepared {
    std::string key;
    BatchTensors tensors;
    std::shared_ptr<const MappedSequences> sequences;
    Sizes sizes;
    bool reference = false;  ///< whether the last set's outputs are those of the built-in Config
  };

  State(std::unique_ptr<CudaDevice> opened, unsigned threads)
      : device(std::move(opened)),
        compile_threads(std::max(threads, 1U)),
        instruments(*device, CacheState::rotating, kNotedClocks),
        difference(*device),
        bytes_per_second(copy_bandwidth(instruments)) {
    clock_mhz = clocks_seen(instruments, kNotedClocks).highest_mhz;
  }

  /// On small inputs, once for each Spec and Config.
  NumericalCheck checked(const Spec& spec, const Config& candidate) {
    const std::string of_spec = fmt::format("{} {}", name_of(spec.op), spec.values.text());
    const std::string key = fmt::format("{} {}", of_spec, candidate.values.text());
    if (const auto found = passed.find(key); found != passed.end()) return found->second;
    auto check = checks.find(of_spec);
    if (check == checks.end()) check = checks.emplace(of_spec, CandidateCheck(*device, spec)).first;
    return passed.emplace(key, check->second(candidate)).first->second;
  }

  Prepared& prepare(const TuningTarget& target) {
    std::string key = json_of(target).dump();
    if (prepared && prepared->key == key) return *prepared;
    if (target.spec.values["layout"] != static_cast<int>(Layout::token_major)) {
      throw std::invalid_argument("tuning measures the token-major layout only");
    }
    prepared.reset();  // its memory first
    const Sizes sizes = sizes_of(target);
    const std::int64_t bytes = tensor_bytes(target.spec, sizes);
    // Two at least: one keeps the reference.
    const int sets = std::max(2, buffer_sets(CacheState::rotating, bytes, device->info().l2_bytes));
    const SequenceMap map = build_sequence_map(boundaries_of(target.batch), target.batch.batch(), target.batch.seqlen);
    prepared.emplace(Prepared{std::move(key), BatchTensors(*device, {&target.spec, 1}, sizes, sets, kSeed),
                              std::make_shared<const MappedSequences>(*device, map, storage_of(target.spec)), sizes});
    return *prepared;
  }

  PreparedCall call_for(const TuningTarget& target, Prepared& with, const Config& config) {
    PreparedCall call{target.spec, config, {}, with.sequences, with.sizes, target.batch.real_tokens()};
    for (int set = 0; set < with.tensors.sets(); ++set) call.tensors.push_back(with.tensors.views(target.spec, set));
    specialise(call.spec, call.config, call.tensors.front());
    return call;
  }

  void run(const PreparedCall& call, std::size_t set) { run_calls(*device, {&call, 1}, set, workspace); }

  void poison(const PreparedCall& call, std::size_t set) {
    for (const TensorRule& rule : tensor_rules(call.spec.op)) {
      const auto found = call.tensors[set].find(rule.name);
      if (!rule.output || found == call.tensors[set].end()) continue;
      const TensorView& view = found->second;
      device->fill(view.data, kPoison, static_cast<std::size_t>(count_of(view.size)) * size_of(view.type));
    }
  }

  /// The worst tensor of the candidate's results against those of the built-in Config, as a share of what two results
  /// within their bounds may differ. Throws CheckFailed.
  double compare_at_full_size(const TuningTarget& target, const Config& candidate) {
    Prepared& with = prepare(target);
    const auto last = static_cast<std::size_t>(with.tensors.sets() - 1);
    if (!with.reference) {
      const PreparedCall built_in = call_for(target, with, builtin_config(target.spec, properties.arch, target.work));
      poison(built_in, last);
      run(built_in, last);
      with.reference = true;
    }
    const PreparedCall call = call_for(target, with, candidate);
    poison(call, 0);
    run(call, 0);
    const double reduction = is_scan(call.spec.op) ? static_cast<double>(target.work.longest) : 0;
    const auto dtype = static_cast<Dtype>(call.spec.values["dtype"]);
    double worst = 0;
    for (const TensorRule& rule : tensor_rules(call.spec.op)) {
      const auto found = call.tensors[0].find(rule.name);
      if (!rule.output || found == call.tensors[0].end()) continue;
      const double error = difference(found->second, call.tensors[last].find(rule.name)->second);
      const double bound = 2 * checking::error_bound(call.spec.op, dtype, rule.name, reduction);
      if (!checking::within(error, bound)) {
        throw CheckFailed(
            fmt::format("{} of {} tokens and {} channels differs from that of the built-in Config by "
                        "{:.1e}, bound {:.1e}",
                        rule.name, target.work.tokens, target.work.dim, error, bound));
      }
      worst = std::max(worst, error / bound);
    }
    device->check_guards();
    return worst;
  }

  /// What stands in guard zones is not mended, so nothing after a damage can be trusted.
  void require_whole_guards(std::optional<std::size_t> candidate) {
    try {
      device->check_guards();
    } catch (const std::exception& error) {
      throw CandidateFault(candidate, error.what());
    }
  }

  std::unique_ptr<CudaDevice> device;
  unsigned compile_threads;
  Instruments instruments;
  Difference difference;
  double bytes_per_second;
  double clock_mhz = 0;
  GpuProperties properties;
  std::string nvrtc, driver;
  std::map<std::string, CandidateCheck> checks;  // by Spec
  std::map<std::string, NumericalCheck> passed;  // by Spec and Config
  std::optional<Prepared> prepared;
  Buffer workspace;
};

GpuBench::GpuBench(std::unique_ptr<CudaDevice> device, unsigned compile_threads)
    : state_(std::make_unique<State>(std::move(device), compile_threads)) {
  state_->properties = gpu_properties(state_->device->info());
  state_->nvrtc = Nvrtc::shared()->version_text();
  const NvrtcVersion version = Driver::get().version;
  state_->driver = fmt::format("{}.{}", version.major, version.minor);
}

GpuBench::~GpuBench() = default;

const GpuProperties& GpuBench::gpu() const { return state_->properties; }
std::string GpuBench::nvrtc() const { return state_->nvrtc; }
std::string GpuBench::driver() const { return state_->driver; }

int GpuBench::compiles_at_once() const { return static_cast<int>(state_->compile_threads); }

std::vector<Trial> GpuBench::compile(const Spec& spec, std::span<const Config> candidates) {
  const auto nvrtc = Nvrtc::shared();
  const std::string arch = arch_for_gpu(state_->properties.arch, nvrtc->archs(), nvrtc->version_text());
  std::vector<Trial> trials(candidates.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < candidates.size(); i = next++) {
      try {
        const CachedCompile found = CompileCache::shared().get(generate(spec, candidates[i], Target::cuda), arch);
        trials[i].failure = fault_of(*found.result);
      } catch (const std::exception& error) {
        trials[i].failure = error.what();
      }
    }
  };
  std::vector<std::jthread> others;
  for (unsigned thread = 1; thread < state_->compile_threads; ++thread) others.emplace_back(work);
  work();
  others.clear();  // joins
  return trials;
}

Trial GpuBench::check(const Spec& spec, const Config& candidate, const TuningTarget* target) {
  Trial trial;
  if (on_use) on_use(0);
  try {
    trial.check = state_->checked(spec, candidate);
    if (target != nullptr) {
      trial.check.error = std::max(trial.check.error, state_->compare_at_full_size(*target, candidate));
      trial.check.method += "; at full size against the built-in Config";
    }
  } catch (const DriverError& error) {
    throw CandidateFault(0, error.what());
  } catch (const OutOfMemory& error) {
    trial.failure = error.what();
  } catch (const CheckFailed& error) {
    trial.failure = error.what();
    state_->require_whole_guards(0);
  } catch (const std::invalid_argument& error) {
    trial.failure = error.what();
  }
  return trial;
}

std::vector<Trial> GpuBench::time(const TuningTarget& target, std::span<const Config> candidates, int rounds) {
  std::vector<Trial> trials(candidates.size());
  try {
    state_->prepare(target).reference = false;  // every set is written in turn
  } catch (const OutOfMemory& error) {
    for (Trial& trial : trials) trial.failure = error.what();
    return trials;
  }
  State::Prepared& prepared = *state_->prepared;
  Instruments& with = state_->instruments;
  struct Timed {
    PreparedCall call;
    std::size_t turn = 0;
    std::int64_t wait = 0;
  };
  std::vector<std::optional<Timed>> timed(candidates.size());
  int calls = 0;
  const auto use = [&](std::size_t i, const auto& what) {
    if (on_use) on_use(i);
    Timed& one = *timed[i];
    try {
      what(one, [&] { state_->run(one.call, one.turn++ % one.call.tensors.size()); });
    } catch (const DriverError& error) {
      throw CandidateFault(i, error.what());
    }
  };
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    try {
      timed[i].emplace(Timed{state_->call_for(target, prepared, candidates[i])});
      use(i, [&](Timed& one, const auto& work) {
        work();  // loads
        if (calls == 0) {
          const double once = measure_round(with, 0, waiting_time(with, 1, work), 1, work);
          calls = std::clamp(static_cast<int>(kShortestRoundMs / once) + 1, 1, kMostCalls);
        }
        one.wait = waiting_time(with, calls, work);
      });
      state_->require_whole_guards(i);
    } catch (const CandidateFault&) {
      throw;
    } catch (const std::exception& error) {
      trials[i].failure = error.what();  // refused before it ran: it does not fit the call, or memory
      timed[i].reset();
    }
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t place = 0; place < candidates.size(); ++place) {
      // Every other round backwards, so that nobody always follows the same one.
      const std::size_t i = round % 2 == 0 ? place : candidates.size() - 1 - place;
      if (!timed[i]) continue;
      use(i, [&](Timed& one, const auto& work) {
        trials[i].rounds.push_back(measure_round(with, round % kNotedClocks, one.wait, calls, work));
      });
    }
  }
  const ClockRange clocks = clocks_seen(with, std::clamp(rounds, 1, kNotedClocks));
  state_->clock_mhz = clocks.highest_mhz;
  for (Trial& trial : trials) {
    trial.lowest_mhz = static_cast<int>(clocks.lowest_mhz);
    trial.highest_mhz = static_cast<int>(clocks.highest_mhz);
  }
  state_->require_whole_guards(candidates.size() == 1 ? std::optional<std::size_t>(0) : std::nullopt);
  return trials;
}

double GpuBench::limit_ms(const TuningTarget& target) {
  const Work work = work_of(target.spec, sizes_of(target), target.batch.real_tokens());
  return limits_of(work, {state_->bytes_per_second, state_->clock_mhz, state_->device->info().multiprocessors})
      .largest_ms();
}

}  // namespace packjit
