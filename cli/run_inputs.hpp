#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/safetensors.hpp"
#include "generator/operators.hpp"
#include "runtime/sequence_map.hpp"
#include "runtime/tensor.hpp"

namespace packjit {

/// What `packjit run` takes out of a file of named tensors for one operator.
struct RunInputs {
  HostTensors tensors;               ///< the operator's inputs that the file has, by name; shapes as in the file
  Spec spec;                         ///< options, completed by dtype, sizes and optional tensors; layout is not set
  Sizes sizes;                       ///< of every symbol that the operator has
  SequenceMap map;                   ///< from the file's boundaries
  std::vector<std::string> ignored;  ///< names in the file that are neither inputs nor boundaries
};

/// Picks and checks the inputs. `options` holds the Spec fields that no tensor decides (softplus, activation, and
/// final_states where it was asked for). With Layout::channel_major, activations are (batch, dim, seqlen) in the file.
///
/// Throws std::invalid_argument naming the file and the tensor, with the shape or dtype found and the one expected, for
/// a tensor that is missing or does not fit the others, and for boundaries that are missing, wrong or contradictory.
[[nodiscard]] RunInputs select_run_inputs(const Spec& options, Layout layout, bool rows_are_sequences,
                                          SafetensorsFile file, std::string_view file_name);

}  // namespace packjit
