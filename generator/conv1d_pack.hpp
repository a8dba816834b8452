#pragma once

#include "generator/operators.hpp"
#include "generator/shared_fields.hpp"

namespace packjit {

// conv1d_pack: fields, tensors, constraints and launches. The kernels are templates/conv1d_pack_{fwd,bwd}.cu.
[[nodiscard]] std::span<const Field> conv_spec_fields();
[[nodiscard]] std::span<const Field> conv_config_fields(bool backward);
[[nodiscard]] std::span<const TensorRule> conv_tensor_rules(bool backward);
void check_conv_pair(const Spec& spec, const Config& config);
[[nodiscard]] Plan conv_plan(const Spec& spec, const Config& config, const Problem& problem);

/// How tokens are cut into tiles: one thread walks one tile of one vector of channels. Tiles never cross rows.
struct ConvTiling {
  std::int64_t tiles_per_row = 0, tiles = 0, channel_vectors = 0;
};
[[nodiscard]] ConvTiling conv_tiling(const Config& config, const Sizes& sizes);

}  // namespace packjit
