#pragma once

#include <cstdint>
#include <vector>

#include "runtime/sequence_map.hpp"
#include "runtime/tensor.hpp"

namespace packjit {

/// One form from one tensor: position_indices or seq_idx of shape (batch, seqlen), or cu_seqlens of shape
/// (n_sequences + 1), of int16, uint16, int32 or int64.
///
/// 16-bit positions saturate at 32,766 (int16) and 65,534 (uint16); uint16 65,535 is padding, in seq_idx too. Offsets
/// of 16 bits are what they are. Throws std::invalid_argument naming the tensor, what was found and what was expected.
/// Whether the values keep the rules is for build_sequence_map() to say.
[[nodiscard]] Boundaries boundaries_from_tensor(Boundaries::Form form, const HostTensor& tensor, std::int64_t batch,
                                                std::int64_t seqlen);

/// Throws std::invalid_argument unless a tensor of this type and shape can be boundaries of the form.
void check_boundary_tensor(Boundaries::Form form, ElementType type, const std::vector<std::int64_t>& shape,
                           std::int64_t batch, std::int64_t seqlen);
/// The position at which positions of the type stop rising; 0 for those that do not, and for other forms.
[[nodiscard]] std::int64_t saturation_of(Boundaries::Form form, ElementType type);

/// The boundaries that a caller gave among named tensors ("position_indices", "seq_idx", "cu_seqlens"; others are not
/// looked at) or by saying that every row is one sequence.
///
/// Throws std::invalid_argument where there is no form at all (packed operators need boundaries: one long sequence is
/// never assumed), where one breaks a rule, and where two disagree, naming the first token on which they do.
[[nodiscard]] Boundaries boundaries_from_tensors(const HostTensors& tensors, bool rows_are_sequences,
                                                 std::int64_t batch, std::int64_t seqlen);

}  // namespace packjit
