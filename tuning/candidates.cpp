#include "tuning/candidates.hpp"

#include "generator/ssm_pack.hpp"
#include "templates/device/sequence_map.cuh"

namespace packjit {

bool fits_shape(const Config& config, const Workload& work) {
  if (is_scan(config.op)) return config.values["segments"] == 0 || work.longest > SEGMENT_TOKENS;
  constexpr int kShortestTile = 16;
  const int tile = config.values["tile_tokens"];
  return tile <= kShortestTile || tile / 2 < work.tokens;
}

std::vector<Config> neighbours(const Spec& spec, const Config& from, const DeviceLimits& limits, const Workload& work,
                               int pairs, SplitMix64& random) {
  const std::vector<FieldChoices> choices = field_choices(spec, limits.arch);
  const auto usable = [&](const Config& config) {
    return worth_trying(spec, config) && fits_shape(config, work) && !refusal(spec, config, limits);
  };
  std::vector<Config> single;
  for (const FieldChoices& choice : choices) {
    for (const int value : choice.values) {
      Config changed = from;
      changed.values.set(choice.field, value);
      if (changed != from && usable(changed)) single.push_back(std::move(changed));
    }
  }
  shuffle(single, random);
  constexpr int kAttempts = 8;  // a pair; most pairs of changes do not go together
  for (int attempt = 0, found = 0; attempt < kAttempts * pairs && found < pairs; ++attempt) {
    Config changed = from;
    for (int change = 0; change < 2; ++change) {
      const FieldChoices& choice = choices[static_cast<std::size_t>(random.below(choices.size()))];
      changed.values.set(choice.field, choice.values[static_cast<std::size_t>(random.below(choice.values.size()))]);
    }
    if (changed == from || !usable(changed)) continue;
    single.push_back(std::move(changed));
    ++found;
  }
  return single;
}

}  // namespace packjit
