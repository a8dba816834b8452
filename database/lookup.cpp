#include "database/lookup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "database/builtin_config.hpp"
#include "database/printable.hpp"

namespace packjit {
namespace {

/// An entry of the Spec that is near enough.
struct Candidate {
  const Database* database;
  const Entry* entry;
  Outcome outcome;
  double distance;
  bool half_weights;  ///< tuned without fp32_weights, which the Spec has
  std::size_t rank;   ///< of its database
};

/// Weights are read once a tile and kept as fp32 whatever they are, so a Config is as fast without fp32_weights.
Spec with_half_weights(Spec spec) {
  if (spec.values.has("fp32_weights")) spec.values.set("fp32_weights", 0);
  return spec;
}

std::string origin_of(const Candidate& candidate) {
  const Entry& entry = *candidate.entry;
  return fmt::format("{}, {} entry of {} ({}{})",
                     candidate.database->origin.empty() ? "a database" : candidate.database->origin,
                     printable(candidate.database->gpu->name), entry.date, text_of(entry.bucket, entry.spec.op),
                     candidate.half_weights ? ", tuned without fp32_weights" : "");
}

/// In the order in which they are tried.
std::vector<Candidate> candidates_of(std::span<const Database* const> databases, const Spec& spec,
                                     const GpuProperties& gpu, const Bucket& bucket) {
  std::vector<Candidate> found;
  const Spec half_weights = with_half_weights(spec);
  for (std::size_t rank = 0; rank < databases.size(); ++rank) {
    const Database* database = databases[rank];
    if (!database->gpu || database->gpu->arch != gpu.arch) continue;
    const bool same = same_model(*database->gpu, gpu);
    for (const Entry& entry : database->entries) {
      if (entry.spec != spec && entry.spec != half_weights) continue;
      const std::optional<double> away = distance(spec.op, entry.bucket, bucket);
      if (!away) continue;
      const Outcome outcome = !same                    ? Outcome::same_architecture
                              : entry.bucket == bucket ? Outcome::exact
                                                       : Outcome::nearest_shape;
      found.push_back({database, &entry, outcome, *away, entry.spec != spec, rank});
    }
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& candidate) {
    return std::tuple(candidate.outcome, candidate.distance, candidate.half_weights, candidate.rank,
                      candidate.entry->bucket);
  });
  return found;
}

std::string why_none(Outcome outcome) {
  switch (outcome) {
    case Outcome::exact:
      return "nothing was tuned on this GPU model for this Spec and bucket";
    case Outcome::nearest_shape:
      return "nothing was tuned on this GPU model for this Spec at a shape within its range";
    case Outcome::same_architecture:
      return "nothing was tuned on another GPU of this architecture for this Spec at a shape within its range";
    case Outcome::built_in:
      break;
  }
  return {};
}

/// Whether less of what needs shared memory is left to take away; then it is taken.
bool shrink(Config& config) {
  for (const char* field : {"stages", "tile_tokens"}) {
    if (!config.values.has(field)) continue;
    const int value = config.values[field], least = std::string_view(field) == "stages" ? 0 : 1;
    if (value <= least) continue;
    config.values.set(field, std::max(value / 2, least));
    if (config.values.has("step_tokens")) {
      config.values.set("step_tokens", std::min(config.values["step_tokens"], config.values["tile_tokens"]));
    }
    return true;
  }
  return false;
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::exact:
      return "exact";
    case Outcome::nearest_shape:
      return "nearest shape";
    case Outcome::same_architecture:
      return "same architecture";
    case Outcome::built_in:
      break;
  }
  return "built-in";
}

std::string why_not(const Spec& spec, const Config& config, const GpuProperties& gpu) {
  Problem any;  // shared memory and threads depend on Spec and Config only
  any.sizes = {.batch = 1, .seqlen = 1, .dim = 1, .groups = 1, .n_sequences = 1};
  for (const char* field : {"d_state", "conv_width"}) {
    if (spec.values.has(field)) any.sizes[field] = spec.values[field];
  }
  any.sizes.history = std::max<std::int64_t>(any.sizes.conv_width - 1, 0);
  try {
    check_arch(config, gpu.arch);
    for (const KernelLaunch& launch : plan(spec, config, any).launches) {
      if (gpu.shared_bytes_per_block > 0 && launch.shared_bytes > gpu.shared_bytes_per_block) {
        return fmt::format("kernel {} needs {} bytes of shared memory a block, the GPU has {}", launch.entry,
                           launch.shared_bytes, gpu.shared_bytes_per_block);
      }
    }
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

Choice built_in_choice(const Spec& spec, const GpuProperties& gpu, const Workload& work) {
  Workload seen = work;
  // A convolution's tiles follow the number of tokens: by its bucket, so that few lengths need a kernel of their own.
  if (!is_scan(spec.op) && spec.op != Operator::sequence_map) seen.tokens = bucket_of(spec.op, work).tokens;
  Choice choice{builtin_config(spec, gpu.arch, seen), Outcome::built_in, "built-in Config for " + gpu.arch, {}};
  std::string problem = why_not(spec, choice.config, gpu);
  if (problem.empty()) return choice;
  // An architecture that the table does not know may have less: what fits all of them, then less and less.
  choice.rejected.push_back({Outcome::built_in, choice.origin, problem});
  choice.config = builtin_config(spec, kAnyArch, seen);
  choice.origin = "built-in Config that fits every architecture";
  while (!(problem = why_not(spec, choice.config, gpu)).empty()) {
    if (choice.rejected.size() == 1) choice.rejected.push_back({Outcome::built_in, choice.origin, problem});
    choice.origin = "built-in Config, made smaller for this GPU";
    Config smaller = choice.config;
    if (!shrink(smaller)) break;  // a launch will say what is missing
    choice.config = std::move(smaller);
  }
  return choice;
}

Choice look_up(std::span<const Database* const> databases, const Spec& spec, const GpuProperties& gpu,
               const Workload& work) {
  std::vector<RejectedStep> rejected;
  if (spec.op != Operator::sequence_map) {
    const std::vector<Candidate> candidates = candidates_of(databases, spec, gpu, bucket_of(spec.op, work));
    auto next = candidates.begin();
    for (const Outcome step : {Outcome::exact, Outcome::nearest_shape, Outcome::same_architecture}) {
      if (next == candidates.end() || next->outcome != step) rejected.push_back({step, "", why_none(step)});
      for (; next != candidates.end() && next->outcome == step; ++next) {
        std::string problem = why_not(spec, next->entry->config, gpu);
        if (problem.empty()) return {next->entry->config, step, origin_of(*next), std::move(rejected)};
        rejected.push_back({step, origin_of(*next), std::move(problem)});
      }
    }
  }
  Choice choice = built_in_choice(spec, gpu, work);
  choice.rejected.insert(choice.rejected.begin(), rejected.begin(), rejected.end());
  return choice;
}

}  // namespace packjit
