#include "generator/search_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "generator/conv1d_pack.hpp"
#include "generator/ssm_pack.hpp"

namespace packjit {
namespace {

bool has_instructions(const Config& config, const std::string& arch) {
  try {
    check_arch(config, arch);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

/// Calls visit(config) for each combination of the choices from `field` on.
template <typename Visit>
void for_each_combination(std::span<const FieldChoices> choices, Config& config, const Visit& visit) {
  if (choices.empty()) {
    visit(config);
    return;
  }
  for (const int value : choices.front().values) {
    config.values.set(choices.front().field, value);
    for_each_combination(choices.subspan(1), config, visit);
  }
}

}  // namespace

std::vector<FieldChoices> field_choices(const Spec& spec, const std::string& arch) {
  std::vector<FieldChoices> declared;
  if (spec.op != Operator::sequence_map) declared = is_scan(spec.op) ? ssm_choices(spec) : conv_choices(spec);
  std::vector<FieldChoices> choices;
  for (const Field& field : config_fields(spec.op)) {
    const auto found = std::ranges::find(declared, field.name, &FieldChoices::field);
    FieldChoices of_field{field.name, found == declared.end() ? std::vector{field.fallback} : found->values};
    std::erase_if(of_field.values, [&](int value) {
      Config alone(spec.op);
      for (const Field& other : config_fields(spec.op)) {
        if (other.minimum == 0) alone.values.set(other.name, 0);
      }
      alone.values.set(field.name, value);
      return !has_instructions(alone, arch);
    });
    if (of_field.values.empty()) of_field.values = {0};  // what needs nothing
    choices.push_back(std::move(of_field));
  }
  return choices;
}

std::optional<std::string> refusal(const Spec& spec, const Config& config, const DeviceLimits& limits) {
  Problem any;  // shared memory depends on Spec and Config only
  any.sizes = {.batch = 1, .seqlen = 1, .dim = 1, .groups = 1};
  if (spec.values.has("d_state")) any.sizes.d_state = spec.values["d_state"];
  if (spec.values.has("conv_width")) any.sizes.conv_width = spec.values["conv_width"];
  try {
    check_arch(config, limits.arch);
    const Plan planned = plan(spec, config, any);
    for (const KernelLaunch& launch : planned.launches) {
      if (launch.shared_bytes > limits.shared_bytes_per_block) {
        return fmt::format("{} needs {} bytes of shared memory a block, {} gives {}", launch.entry, launch.shared_bytes,
                           limits.arch, limits.shared_bytes_per_block);
      }
    }
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

bool worth_trying(const Spec& spec, const Config& config) {
  if (spec.op == Operator::sequence_map) return true;
  return is_scan(spec.op) ? ssm_worth_trying(spec, config) : conv_worth_trying(spec, config);
}

std::vector<Config> search_space(const Spec& spec, const DeviceLimits& limits) {
  const std::vector<FieldChoices> choices = field_choices(spec, limits.arch);
  std::vector<Config> space;
  Config config(spec.op);
  for_each_combination(choices, config, [&](const Config& candidate) {
    if (worth_trying(spec, candidate) && !refusal(spec, candidate, limits)) space.push_back(candidate);
  });
  return space;
}

}  // namespace packjit
