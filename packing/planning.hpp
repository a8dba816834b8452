#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "packing/packing.hpp"

/// What to train with: parameters, memory, pack length, batch and expected gain, from formulas and a few measured
/// numbers. Pure, as the rest of packing. Every function throws std::invalid_argument for what is out of range.
namespace packjit {

/// A Mamba model (Gu, Dao 2023). Its embedding also computes the logits.
struct MambaShape {
  std::int64_t layers = 0, d_model = 0, d_state = 16, expand = 2, conv_width = 4, vocabulary = 50280;
  [[nodiscard]] std::int64_t d_inner() const { return expand * d_model; }
  [[nodiscard]] std::int64_t dt_rank() const { return (d_model + 15) / 16; }
  /// Rounded up to a multiple of 8, as the published models do.
  [[nodiscard]] std::int64_t padded_vocabulary() const { return (vocabulary + 7) / 8 * 8; }
};

struct NamedMambaShape {
  std::string_view name;  ///< "1.4b"
  MambaShape shape;
};
/// The published sizes.
[[nodiscard]] std::span<const NamedMambaShape> named_mamba_shapes();
[[nodiscard]] const MambaShape& mamba_shape_named(std::string_view name);

/// Numbers of parameters; all but the last four are of one layer.
struct ParameterCount {
  std::int64_t in_projection = 0;   ///< d_model * 2 d_inner
  std::int64_t convolution = 0;     ///< d_inner * (conv_width + 1): weight and bias
  std::int64_t x_projection = 0;    ///< d_inner * (dt_rank + 2 d_state)
  std::int64_t dt_projection = 0;   ///< dt_rank * d_inner + d_inner
  std::int64_t scan = 0;            ///< d_inner * (d_state + 1): A and D
  std::int64_t out_projection = 0;  ///< d_inner * d_model
  std::int64_t norm = 0;            ///< d_model
  std::int64_t layer = 0;           ///< the sum of these
  std::int64_t embedding = 0;       ///< padded vocabulary * d_model, once
  std::int64_t final_norm = 0;
  std::int64_t total = 0;
};
[[nodiscard]] ParameterCount parameters_of(const MambaShape& shape);

struct OptimizerChoice {
  std::string_view name;
  std::int64_t state_bytes;  ///< a parameter, beside weight and gradient and the fp32 copy
  std::string_view meaning;
};
[[nodiscard]] std::span<const OptimizerChoice> optimizer_choices();

/// What the forward keeps for the backward.
enum class Kept {
  all,          ///< everything, the scan's checkpoints too
  activations,  ///< everything but the scan's checkpoints, which the backward computes again
  layer_inputs  ///< only what each layer begins with; the backward runs each layer's forward again
};

struct MemoryOptions {
  double gpu_gigabytes = 0;        ///< of 10^9 bytes
  double reserve = 0.1;            ///< share of it for the driver, libraries and fragmentation
  std::int64_t element_bytes = 2;  ///< of activations and weights: 2 or 4
  std::string_view optimizer = "adamw";
  Kept kept = Kept::activations;
  std::int64_t logits_tokens = 0;  ///< tokens whose logits exist at once; 0: all of a step
};

/// Bytes. What grows with the tokens is per token of a step.
struct MemoryBudget {
  std::int64_t gpu = 0, reserve = 0;
  std::int64_t bytes_per_parameter = 0;  ///< weight, gradient, fp32 copy where the weight is shorter, optimizer
  std::int64_t model = 0;                ///< parameters * bytes_per_parameter
  std::int64_t layer_token = 0;          ///< kept by one layer
  std::int64_t passing_token = 0;        ///< of the layer that is running: gradients, workspace, what is computed again
  std::int64_t logits_token = 0;         ///< logits, their fp32 copy and gradient
  std::int64_t logits = 0;               ///< where logits_tokens bounds them: all of them
  std::int64_t token = 0;                ///< layers * layer_token + passing_token + logits_token
  std::int64_t left = 0;                 ///< for tokens; may be negative
  std::int64_t tokens = 0;               ///< that fit, 0 where none do
};
[[nodiscard]] MemoryBudget memory_budget(const MambaShape& shape, const MemoryOptions& options);

/// How the lengths would be packed with one pack length, and what a step then holds.
struct PackChoice {
  std::int64_t pack_length = 0;
  std::int64_t rows = 0;  ///< a step; as many as fit
  double fill_rate = 0;
  std::int64_t documents_cut = 0;
  double tokens = 0;     ///< real ones a step, on average: rows * pack_length * fill_rate
  double sequences = 0;  ///< documents a step, on average
};

struct PaddedSetup {
  std::int64_t batch = 0;   ///< sequences a step
  std::int64_t length = 0;  ///< each padded to; longer documents are truncated
};

/// A user's padded set-up on the same lengths.
struct PaddedUse {
  PaddedSetup setup;
  double tokens = 0;     ///< real ones a step, on average
  double fill_rate = 0;  ///< real tokens / (batch * length)
  double dropped = 0;    ///< share of all tokens that truncation drops
};
[[nodiscard]] PaddedUse padded_use(std::span<const Document> documents, const PaddedSetup& setup);

/// One of the operators' measured times: milliseconds of one layer, by number of tokens.
struct MeasuredOperator {
  std::string_view name;
  double ms_4096, ms_32768;
  bool again = false;  ///< run once more by the backward
};
/// Where the numbers come from.
struct CostTable {
  std::string_view gpu, date, source;
  std::int64_t dim, d_state;
  std::span<const MeasuredOperator> operators;  ///< what a layer runs, forward and backward
};
[[nodiscard]] const CostTable& cost_table(Kept kept);
/// Seconds of the operators of all layers, forward and backward, for `tokens` tokens (padding included): straight lines
/// through the measured points, in proportion to d_inner, the scan also to d_state.
[[nodiscard]] double operator_seconds(const MambaShape& shape, double tokens, Kept kept);

/// Fewer lengths than these say little about a training set: documents, and steps that they fill.
inline constexpr std::int64_t kFewestDocuments = 100, kFewestSteps = 10;

/// The proposal, with what it is compared to.
struct Advice {
  std::int64_t documents = 0, tokens = 0;  ///< of the lengths
  ParameterCount parameters;
  MemoryBudget memory;
  std::vector<PackChoice> choices;  ///< powers of two from 512 to what fits
  std::size_t chosen = 0;           ///< index into choices
  PaddedUse padded;
  bool is_padded_given = false;          ///< otherwise: what the same memory holds, padded to 2,048
  double batch_ratio = 0;                ///< real tokens of a packed step / those of a padded step
  std::int64_t rows_for_same_batch = 0;  ///< rows whose real tokens are nearest to those of a padded step; at least 1
  double operator_ms = 0;                ///< of a packed step
  double operator_us_per_token = 0;      ///< of a real token, packed
  double padded_us_per_token = 0;        ///< the same kernels on the padded batch
  /// Fill rates and sequences are then those of these few documents, and the last row, mostly empty, counts much.
  [[nodiscard]] bool is_sample_small() const;
  [[nodiscard]] double linear_scale() const { return batch_ratio; }
  [[nodiscard]] double square_root_scale() const;
  [[nodiscard]] double operator_speedup() const { return padded_us_per_token / operator_us_per_token; }
  /// Of everything that costs the same for a padding token as for a real one, as matrix products do.
  [[nodiscard]] double padding_speedup() const { return choices[chosen].fill_rate / padded.fill_rate; }
};

/// `padded.batch` 0: the user has no padded set-up. Throws std::invalid_argument where the model, or a row of the
/// shortest pack length, does not fit into the memory.
[[nodiscard]] Advice advise(const MambaShape& shape, const MemoryOptions& memory, std::span<const Document> documents,
                            const PaddedSetup& padded);

}  // namespace packjit
