#pragma once

#include "generator/operators.hpp"
#include "generator/search_space.hpp"
#include "generator/shared_fields.hpp"

namespace packjit {

// conv1d_pack: fields, tensors, constraints, search space and launches. The kernels are
// templates/conv1d_pack_{fwd,bwd}.cu.
[[nodiscard]] std::span<const Field> conv_spec_fields();
[[nodiscard]] std::span<const Field> conv_config_fields(bool backward);
[[nodiscard]] std::span<const TensorRule> conv_tensor_rules(bool backward);
/// Gives the rules what the Spec says about weight and bias.
void conv_adapt_rules(const Spec& spec, std::span<TensorRule> rules);
void check_conv_pair(const Spec& spec, const Config& config);
[[nodiscard]] std::vector<FieldChoices> conv_choices(const Spec& spec);
[[nodiscard]] bool conv_worth_trying(const Spec& spec, const Config& config);
[[nodiscard]] Plan conv_plan(const Spec& spec, const Config& config, const Problem& problem);

/// How the work is divided (templates/device/conv_tile.cuh): groups of block_tiles tiles of tokens, which never cross
/// rows, times groups of the channels that a block's threads take beside each other.
struct ConvGrid {
  std::int64_t tile_groups = 0, channel_groups = 0;
};
[[nodiscard]] ConvGrid conv_grid(const Config& config, const Sizes& sizes);

}  // namespace packjit
