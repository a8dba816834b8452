#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generator/operators.hpp"
#include "generator/sequence_map.hpp"
#include "runtime/operator_call.hpp"

/// Proof that an operator on a device computes the oracle's values: cases, bounds, comparisons.
namespace packjit::checking {

/// Consecutive tokens of one row: a sequence, or padding.
struct Stretch {
  std::int64_t length = 0;  ///< tokens, at least 1
  bool padding = false;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};
using Row = std::vector<Stretch>;

/// One call of one operator on inputs drawn from a seed. A plain value.
struct Case {
  std::string name;
  Operator op = Operator::ssm_pack_fwd;
  Dtype dtype = Dtype::fp32;
  std::int64_t dim = 8;
  std::int64_t d_state = 16;                                       ///< scan only
  std::int64_t groups = 1;                                         ///< scan only
  std::int64_t conv_width = 4;                                     ///< convolution only
  bool softplus = true, D = true, z = true, delta_bias = true;     ///< scan only
  bool constant_B = false, constant_C = false, complex_A = false;  ///< scan only
  bool bias = true, silu = true, fp32_weights = false;             ///< convolution only
  MapStorage map = MapStorage::positions;                          ///< convolution only
  bool initial_states = false;
  bool final_states = false;  ///< forward: asked for; backward: their gradient is given
  bool checkpoints = false;   ///< scan only: stored by the forward, given to the backward
  Layout layout = Layout::token_major;
  std::vector<Row> rows;  ///< all rows hold the same number of tokens
  std::uint64_t seed = 1;
  std::vector<std::pair<std::string, std::string>> config;  ///< Config fields that differ from the built-in ones

  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::int64_t seqlen() const;  ///< tokens of the first row
};

/// A sequence's place; its slot is its index in `sequences_of`.
struct Sequence {
  std::int64_t row = 0, start = 0, length = 0;
};

/// Throws std::invalid_argument that names the case and the rule: rows of one length, sizes in range.
void validate(const Case& check_case);
/// All sequences in slot order.
[[nodiscard]] std::vector<Sequence> sequences_of(const Case& check_case);
[[nodiscard]] bool has_padding(const Case& check_case);

/// Lengths of sequences without padding; a negative length is padding: {5, 2, -3} is two sequences and 3 padding
/// tokens.
[[nodiscard]] Row row_of(const std::vector<std::int64_t>& lengths);

/// The case's boundaries in one of the four forms, or nothing where that form cannot say the same (padding has no
/// cu_seqlens; `rows` needs one sequence a row).
[[nodiscard]] std::optional<Boundaries> boundaries_of(const Case& check_case, Boundaries::Form form);
[[nodiscard]] SequenceMap map_of(const Case& check_case);

/// The Spec that the case asks for, every field set.
[[nodiscard]] Spec spec_of(const Case& check_case);
/// A case that asks for the Spec, without rows yet: spec_of(case_of(spec)) == spec.
[[nodiscard]] Case case_of(const Spec& spec);
/// The built-in Config for `arch` with the case's own fields on top.
[[nodiscard]] Config config_of(const Case& check_case, const std::string& arch);

/// How a tensor divides into sequences.
enum class Extent { token, slot, shared };
[[nodiscard]] Extent extent_of(const Case& check_case, std::string_view tensor);
/// Initial and final states and their gradients.
[[nodiscard]] bool is_of_slots(std::string_view tensor);
/// Tensors of shape (batch, seqlen, dim), which have a layout.
[[nodiscard]] bool is_activation(std::string_view tensor);

}  // namespace packjit::checking
