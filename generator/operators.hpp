#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/fields.hpp"

namespace packjit {

/// The four operators of packed Mamba, and what prepares a batch for them: sequence_map turns boundaries into the map
/// that they read. Values are stable: they are stored.
enum class Operator { conv1d_pack_fwd, conv1d_pack_bwd, ssm_pack_fwd, ssm_pack_bwd, sequence_map };
/// Those that take and give tensors.
inline constexpr Operator kOperators[] = {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd, Operator::ssm_pack_fwd,
                                          Operator::ssm_pack_bwd};
/// Those that have a template.
inline constexpr Operator kTemplates[] = {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd, Operator::ssm_pack_fwd,
                                          Operator::ssm_pack_bwd, Operator::sequence_map};

/// Element types of activations. The values are those of the Spec field `dtype`.
enum class Dtype { fp32, fp16, bf16 };
[[nodiscard]] std::size_t size_of(Dtype dtype);       ///< bytes
[[nodiscard]] std::string_view name_of(Dtype dtype);  ///< "bf16"
[[nodiscard]] std::string_view name_of(Operator op);  ///< "ssm_pack_fwd"
/// One of `among`; throws std::invalid_argument that lists their names.
[[nodiscard]] Operator operator_named(std::string_view name, std::span<const Operator> among = kOperators);
[[nodiscard]] bool is_scan(Operator op);  ///< ssm_pack, either direction
[[nodiscard]] bool is_backward(Operator op);

/// Memory layout of the activations, the values of the Spec field `layout`: token_major has channel stride 1,
/// channel_major has token stride 1, strided promises nothing.
enum class Layout { token_major, channel_major, strided };

/// What is computed. See docs/design.md, "Spec, Config, key".
struct Spec {
  explicit Spec(Operator operation);  ///< the operator's default Spec
  Operator op;
  FieldValues values;
  friend bool operator==(const Spec&, const Spec&) = default;
};

/// How it is computed: the launch configuration.
struct Config {
  explicit Config(Operator operation);  ///< all fields at their fallback
  Operator op;
  FieldValues values;
  friend bool operator==(const Config&, const Config&) = default;
};

[[nodiscard]] std::span<const Field> spec_fields(Operator op);
[[nodiscard]] std::span<const Field> config_fields(Operator op);

/// Throws std::invalid_argument that names the constraint that the pair breaks (states a lane must hold, threads...).
void check_pair(const Spec& spec, const Config& config);

/// Throws std::invalid_argument where a field of the Config asks for instructions that `arch` ("sm_75") lacks, naming
/// the architecture they came with. What is no GPU architecture ("host") has all of them.
void check_arch(const Config& config, std::string_view arch);

// --- tensors -----------------------------------------------------------------------------------------------------

/// One tensor of an operator's interface.
struct TensorRule {
  std::string_view name;   ///< "u", "dweight"...
  std::string_view shape;  ///< symbols of `Sizes`, blank separated: "batch seqlen dim"
  bool always_fp32;        ///< else it has the Spec's dtype
  bool output;
  std::string_view field;  ///< the Spec field that must be on for the tensor to exist; empty: always
  bool complex = false;    ///< pairs of fp32, real part first; then always_fp32 is on
};

/// The tensors of an operator, inputs first, as its default Spec has them. "batch seqlen dim" tensors are activations:
/// any strides.
[[nodiscard]] std::span<const TensorRule> tensor_rules(Operator op);
/// The same tensors in the same order, with the shapes and types that the Spec gives them: constant B and C are of
/// channels and not of tokens; with complex A, what is fp32 and of states is complex, and B and C of tokens have two
/// numbers a state; weight and bias are fp32 where the Spec says so.
[[nodiscard]] std::vector<TensorRule> tensor_rules(const Spec& spec);

/// Sizes that the shape symbols stand for. `history` is conv_width - 1, `state_reals` ("2*d_state") what it says.
/// Unused ones stay 0.
struct Sizes {
  std::int64_t batch = 0, seqlen = 0, dim = 0, groups = 0, d_state = 0, conv_width = 0, history = 0, n_sequences = 0,
               n_checkpoints = 0, state_reals = 0;
  /// The size named by a shape symbol; throws std::invalid_argument for an unknown one.
  std::int64_t& operator[](std::string_view symbol);
  std::int64_t operator[](std::string_view symbol) const;
};
/// Splits "batch seqlen dim".
[[nodiscard]] std::vector<std::string_view> shape_symbols(std::string_view shape);

// --- launches ----------------------------------------------------------------------------------------------------

/// One kernel launch of an operator: block is one-dimensional, grid.z is 1.
struct KernelLaunch {
  std::string entry;  ///< name of the __global__ function in the generated source
  std::uint32_t grid_x = 1, grid_y = 1, block = 1;
  std::uint32_t shared_bytes = 0;  ///< dynamic shared memory
  bool early = false;              ///< may start while the launch before it ends, for which it waits itself
};

/// The launches of one operator call, in order, and the scratch memory they share.
struct Plan {
  std::vector<KernelLaunch> launches;
  std::int64_t workspace_bytes = 0;
};

/// What the plan depends on. `items` is the number of work items of the SequenceMap, `segments` that of its segments.
struct Problem {
  Sizes sizes;
  std::int64_t items = 0, segments = 0;
};
[[nodiscard]] Plan plan(const Spec& spec, const Config& config, const Problem& problem);

}  // namespace packjit
