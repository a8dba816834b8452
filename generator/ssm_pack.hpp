#pragma once

#include "generator/operators.hpp"
#include "generator/search_space.hpp"
#include "generator/shared_fields.hpp"

namespace packjit {

// ssm_pack: fields, tensors, constraints, search space and launches. The kernels are templates/ssm_pack_{fwd,bwd}.cu,
// and for some options those of generator/ssm_simple.hpp.
[[nodiscard]] std::span<const Field> ssm_spec_fields();
[[nodiscard]] std::span<const Field> ssm_config_fields(bool backward);
[[nodiscard]] std::span<const TensorRule> ssm_tensor_rules(bool backward);
/// Gives the rules, in the order of the table, what the Spec says about B, C and complex numbers.
void ssm_adapt_rules(const Spec& spec, std::span<TensorRule> rules);
void check_ssm_pair(const Spec& spec, const Config& config);
[[nodiscard]] std::vector<FieldChoices> ssm_choices(const Spec& spec);
[[nodiscard]] bool ssm_worth_trying(const Spec& spec, const Config& config);
[[nodiscard]] Plan ssm_plan(const Spec& spec, const Config& config, const Problem& problem);

/// Tokens of a sequence after which the forward stores states for the backward, as in the templates.
[[nodiscard]] int checkpoint_interval(std::int64_t d_state);
/// Size of the tensor `checkpoints`: how many states of each channel a forward stores for its backward, at batch,
/// seqlen and d_state.
[[nodiscard]] std::int64_t ssm_checkpoints(const Sizes& sizes);

inline constexpr std::int64_t kMostSsmItemBlocks = 128;  ///< beyond that, more partial sums of dA only cost
/// Bytes of partial sums, an element (token and channel), each of the two kinds.
inline constexpr std::int64_t kSsmPartialBytes = 12;

/// Where the kernels of one call keep what they hand to each other: byte offsets into the workspace.
struct SsmWorkspace {
  std::int64_t segment_dt = 0;         ///< fp32 (boundaries between segments, dim), for own checkpoints those, dim too
  std::int64_t segment_states = 0;     ///< fp32 (boundaries, dim, d_state)
  std::int64_t segment_gradients = 0;  ///< fp32 (boundaries, dim, d_state)
  std::int64_t checkpoints = 0;        ///< fp32 (checkpoints, dim, d_state), where the forward has not stored them
  std::int64_t partial_bc = 0;         ///< fp32 (channel blocks of a group, tokens, groups, 2 * d_state)
  std::int64_t partial_channels = 0;   ///< fp32 (item blocks, 2, dim, d_state + 2): dA, dD, ddelta_bias and rounding
  std::int64_t bytes = 0;
  std::int64_t items = 0;             ///< sequences, or segments
  std::int64_t blocks_per_group = 0;  ///< channel blocks of one group
  std::int64_t item_blocks = 0;       ///< blocks that share the items of one channel block
  /// Where the next part begins, a multiple of 256 bytes; `bytes` grows by its size.
  std::int64_t take(std::int64_t size);
};
[[nodiscard]] SsmWorkspace ssm_workspace(const Spec& spec, const Config& config, const Problem& problem);

}  // namespace packjit
