#pragma once

#include "checking/case.hpp"

namespace packjit::checking {

/// Inputs of a case, token-major, rounded to the dtypes that the operator takes. Scaled as in training: A between -0.5
/// and about -d_state, the step softplus(delta + delta_bias) between 0.001 and 0.1, all else about N(0, 1).
/// Padding tokens hold random values too: no result may depend on them.
[[nodiscard]] HostTensors make_inputs(const Case& check_case);

/// Swaps the last two dimensions of every activation: token-major to channel-major and back is the same swap.
[[nodiscard]] HostTensor swap_token_and_channel(const HostTensor& tensor);

/// Where the values of one sequence stand in a token-major tensor of extent `token` or `slot`.
struct Slice {
  std::size_t first = 0, count = 0;  ///< elements
};
[[nodiscard]] Slice slice_of(const Case& check_case, const Sequence& sequence, std::size_t slot,
                             std::string_view tensor, std::int64_t count);

}  // namespace packjit::checking
