#include "packing/planning.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "packing/statistics.hpp"

namespace packjit {
namespace {

constexpr NamedMambaShape kShapes[] = {
    {"130m", {24, 768}}, {"370m", {48, 1024}}, {"790m", {48, 1536}}, {"1.4b", {48, 2048}}, {"2.8b", {64, 2560}},
};

constexpr OptimizerChoice kOptimizers[] = {
    {"adamw", 8, "two fp32 moments"},
    {"adamw-8bit", 2, "two moments of 8 bits, their scales left out"},
    {"sgd", 4, "one fp32 momentum"},
};

// Medians of `packjit bench ops --tokens N --cache warm --together --repeats 21`, bench/results/h200_ops_4096.json and
// h200_ops_32768.json: bf16, conv_width 4. The scan is forward and backward in one timed region.
constexpr MeasuredOperator kRecomputed[] = {
    {"conv1d_pack_fwd", 0.0204, 0.1333},
    {"conv1d_pack_bwd", 0.0354, 0.2117},
    {"ssm_pack_fwd+bwd", 0.8622, 4.4545},
};
constexpr MeasuredOperator kRunAgain[] = {
    kRecomputed[0],
    kRecomputed[1],
    kRecomputed[2],
    {"conv1d_pack_fwd", 0.0204, 0.1333, true},
    {"ssm_pack_fwd", 0.1518, 0.7399, true},
};
constexpr MeasuredOperator kStored[] = {
    kRecomputed[0],
    kRecomputed[1],
    {"ssm_pack_fwd+bwd", 0.7119, 3.8460},
};
constexpr std::string_view kSource = "bench/results/h200_ops_4096.json, h200_ops_32768.json";
constexpr CostTable kRecomputedTable = {"NVIDIA H200", "2026-12-03", kSource, 4096, 16, kRecomputed};
constexpr CostTable kRunAgainTable = {"NVIDIA H200", "2026-12-03", kSource, 4096, 16, kRunAgain};
constexpr CostTable kStoredTable = {"NVIDIA H200", "2026-12-03", kSource, 4096, 16, kStored};

/// Bytes an element of the scan's backward workspace without checkpoints, as docs/design.md says.
constexpr std::int64_t kPartialSumBytes = 2;
constexpr std::int64_t kShortestPackLength = 512;
/// Their bytes, 16 a parameter at most, are numbers of 64 bits with room for what is added to them. The limits of the
/// single sizes keep the sum of all parameters itself below 2^61.
constexpr std::int64_t kMostParameters = std::int64_t{1} << 58;
/// What sequences are padded to where the user does not say.
constexpr std::int64_t kUsualPaddedLength = 2048;
/// A longer pack length is preferred where a step holds at least this share of the most tokens that any choice holds.
constexpr double kEnoughTokens = 0.75;

void check(std::string_view name, std::int64_t value, std::int64_t minimum, std::int64_t maximum) {
  if (value >= minimum && value <= maximum) return;
  throw std::invalid_argument("plan: " + std::string(name) + " must be from " + std::to_string(minimum) + " to " +
                              std::to_string(maximum) + ", found " + std::to_string(value));
}

void check_shape(const MambaShape& shape) {
  check("layers", shape.layers, 1, 10000);
  check("d_model", shape.d_model, 1, 1 << 20);
  check("d_state", shape.d_state, 1, 512);
  check("expand", shape.expand, 1, 64);
  check("conv_width", shape.conv_width, 1, 16);
  check("vocabulary", shape.vocabulary, 1, 1 << 24);
}

/// fp32 states, one after every so many tokens: see docs/design.md, section 2.
std::int64_t checkpoint_bytes_per_element(std::int64_t d_state) {
  const std::int64_t interval = d_state <= 16 ? 8 : d_state <= 128 ? 16 : d_state <= 256 ? 32 : 64;
  return (4 * d_state + interval - 1) / interval;
}

const OptimizerChoice& optimizer_named(std::string_view name) {
  std::string known;
  for (const OptimizerChoice& choice : kOptimizers) {
    if (choice.name == name) return choice;
    known += (known.empty() ? "" : ", ") + std::string(choice.name);
  }
  throw std::invalid_argument("plan: there is no optimizer '" + std::string(name) + "'; the optimizers are " + known);
}

std::string gigabytes(std::int64_t bytes) {
  const auto tenths = static_cast<std::int64_t>(std::llround(static_cast<double>(bytes) / 1e8));
  return std::to_string(tenths / 10) + "." + std::to_string(std::abs(tenths % 10)) + " GB";
}

PackChoice pack_choice(std::span<const Document> documents, std::int64_t pack_length, std::int64_t tokens_that_fit) {
  PackChoice choice;
  choice.pack_length = pack_length;
  choice.rows = tokens_that_fit / pack_length;
  PackOptions options;
  options.pack_length = pack_length;
  const PackStatistics found = statistics_of(plan_local_greedy(documents, options), documents);
  choice.fill_rate = found.fill_rate;
  choice.documents_cut = found.documents_cut;
  choice.tokens = static_cast<double>(choice.rows * pack_length) * choice.fill_rate;
  choice.sequences = choice.tokens * static_cast<double>(found.documents) / static_cast<double>(found.tokens);
  return choice;
}

std::size_t best_choice(const std::vector<PackChoice>& choices, std::int64_t longest) {
  double most = 0;
  for (const PackChoice& choice : choices) most = std::max(most, choice.tokens);
  std::size_t best = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const bool is_long_enough = i > 0 && choices[i - 1].pack_length >= longest;
    if (choices[i].tokens >= kEnoughTokens * most && !is_long_enough) best = i;
  }
  return best;
}

}  // namespace

std::span<const NamedMambaShape> named_mamba_shapes() { return kShapes; }

const MambaShape& mamba_shape_named(std::string_view name) {
  std::string known;
  for (const NamedMambaShape& named : kShapes) {
    if (named.name == name) return named.shape;
    known += (known.empty() ? "" : ", ") + std::string(named.name);
  }
  throw std::invalid_argument("plan: there is no model '" + std::string(name) + "'; the models are " + known +
                              ", others are given by --layers and --d-model");
}

std::span<const OptimizerChoice> optimizer_choices() { return kOptimizers; }

ParameterCount parameters_of(const MambaShape& shape) {
  check_shape(shape);
  const std::int64_t inner = shape.d_inner();
  ParameterCount count;
  count.in_projection = shape.d_model * 2 * inner;
  count.convolution = inner * (shape.conv_width + 1);
  count.x_projection = inner * (shape.dt_rank() + 2 * shape.d_state);
  count.dt_projection = shape.dt_rank() * inner + inner;
  count.scan = inner * (shape.d_state + 1);
  count.out_projection = inner * shape.d_model;
  count.norm = shape.d_model;
  count.layer = count.in_projection + count.convolution + count.x_projection + count.dt_projection + count.scan +
                count.out_projection + count.norm;
  count.embedding = shape.padded_vocabulary() * shape.d_model;
  count.final_norm = shape.d_model;
  count.total = shape.layers * count.layer + count.embedding + count.final_norm;
  check("parameters (by layers, d_model and expand)", count.total, 1, kMostParameters);
  return count;
}

MemoryBudget memory_budget(const MambaShape& shape, const MemoryOptions& options) {
  if (!(options.gpu_gigabytes > 0) || options.gpu_gigabytes > 1e6) {
    throw std::invalid_argument("plan: GPU memory must be above 0 and at most 1000000 GB, found " +
                                std::to_string(options.gpu_gigabytes));
  }
  if (!(options.reserve >= 0) || options.reserve >= 1) {
    throw std::invalid_argument("plan: the reserve must be a share from 0 to below 1, found " +
                                std::to_string(options.reserve));
  }
  check("logits tokens", options.logits_tokens, 0, kMaximumLength);
  const std::int64_t element = options.element_bytes;
  const std::int64_t model = shape.d_model;
  const std::int64_t inner = shape.d_inner();
  const std::int64_t checkpoints = inner * checkpoint_bytes_per_element(shape.d_state);
  // The residual stream is fp32; the norm's output; x and z; the convolution's output; dt, B, C; delta; the scan's
  // output.
  const std::int64_t layer_input = 4 * model;
  const std::int64_t activations =
      layer_input + element * (model + 2 * inner + inner + shape.dt_rank() + 2 * shape.d_state + inner + inner);
  MemoryBudget budget;
  budget.gpu = static_cast<std::int64_t>(options.gpu_gigabytes * 1e9);
  budget.reserve = static_cast<std::int64_t>(options.gpu_gigabytes * 1e9 * options.reserve);
  budget.bytes_per_parameter = 2 * element + (element < 4 ? 4 : 0) + optimizer_named(options.optimizer).state_bytes;
  budget.model = parameters_of(shape).total * budget.bytes_per_parameter;
  budget.layer_token = options.kept == Kept::layer_inputs ? layer_input
                       : options.kept == Kept::all        ? activations + checkpoints
                                                          : activations;
  // The gradients of one layer's activations take as much as these; the scan's backward has its workspace.
  budget.passing_token = activations + inner * kPartialSumBytes + (options.kept == Kept::all ? 0 : checkpoints) +
                         (options.kept == Kept::layer_inputs ? activations : 0);
  const std::int64_t logits = shape.padded_vocabulary() * (2 * element + 4);
  budget.logits_token = options.logits_tokens > 0 ? 0 : logits;
  budget.logits = options.logits_tokens * logits;
  budget.token = shape.layers * budget.layer_token + budget.passing_token + budget.logits_token;
  budget.left = budget.gpu - budget.reserve - budget.model - budget.logits;
  budget.tokens = std::min(std::max<std::int64_t>(budget.left, 0) / budget.token, kMaximumLength);
  return budget;
}

PaddedUse padded_use(std::span<const Document> documents, const PaddedSetup& setup) {
  check("padded batch", setup.batch, 1, kMaximumLength);
  check("padded length", setup.length, 1, kMaximumLength);
  if (documents.empty()) throw std::invalid_argument("plan: there are no lengths");
  double kept = 0;
  double all = 0;
  for (const Document& document : documents) {
    kept += static_cast<double>(std::min(document.length, setup.length));
    all += static_cast<double>(document.length);
  }
  const double mean = kept / static_cast<double>(documents.size());
  PaddedUse use;
  use.setup = setup;
  use.tokens = static_cast<double>(setup.batch) * mean;
  use.fill_rate = mean / static_cast<double>(setup.length);
  use.dropped = 1 - kept / all;
  return use;
}

const CostTable& cost_table(Kept kept) {
  if (kept == Kept::layer_inputs) return kRunAgainTable;
  return kept == Kept::all ? kStoredTable : kRecomputedTable;
}

double operator_seconds(const MambaShape& shape, double tokens, Kept kept) {
  const CostTable& table = cost_table(kept);
  double ms = 0;
  for (const MeasuredOperator& measured : table.operators) {
    const double slope = (measured.ms_32768 - measured.ms_4096) / (32768 - 4096);
    const bool is_scan = measured.name.starts_with("ssm");
    const double states = is_scan ? static_cast<double>(shape.d_state) / static_cast<double>(table.d_state) : 1.0;
    ms += states * (measured.ms_4096 + slope * (tokens - 4096));
  }
  // Below 4,096 tokens the line would go to what is left of a launch without tokens, which nobody measured.
  const double channels = static_cast<double>(shape.d_inner()) / static_cast<double>(table.dim);
  return static_cast<double>(shape.layers) * channels * ms / 1e3;
}

bool Advice::is_sample_small() const {
  return documents < kFewestDocuments || tokens < kFewestSteps * choices[chosen].rows * choices[chosen].pack_length;
}

double Advice::square_root_scale() const { return std::sqrt(batch_ratio); }

Advice advise(const MambaShape& shape, const MemoryOptions& memory, std::span<const Document> documents,
              const PaddedSetup& padded) {
  Advice advice;
  advice.parameters = parameters_of(shape);
  advice.memory = memory_budget(shape, memory);
  const MemoryBudget& budget = advice.memory;
  if (budget.left <= 0) {
    throw std::invalid_argument(
        "plan: the model alone does not fit, whatever the batch: of " + gigabytes(budget.gpu) + ", " +
        gigabytes(budget.reserve) + " are in reserve" +
        (budget.logits > 0 ? ", " + gigabytes(budget.logits) + " go to the logits of --logits-tokens" : "") + ", and " +
        gigabytes(budget.model) + " go to weights, gradients and optimizer, " +
        std::to_string(budget.bytes_per_parameter) +
        " bytes a parameter; divide these over GPUs, choose an optimizer that keeps less (--optimizer), or a smaller "
        "model");
  }
  if (budget.tokens < kShortestPackLength) {
    throw std::invalid_argument(
        "plan: a row of " + std::to_string(kShortestPackLength) + " tokens does not fit: of " + gigabytes(budget.gpu) +
        ", " + gigabytes(budget.reserve) + " are in reserve, " + gigabytes(budget.model) +
        " go to weights, gradients and optimizer, and a token takes " + std::to_string(budget.token) +
        " bytes; divide the optimizer's state over GPUs, keep less for the backward (--keep layer-inputs), or bound "
        "the "
        "logits (--logits-tokens)");
  }
  std::int64_t longest = 0;
  advice.documents = static_cast<std::int64_t>(documents.size());
  for (const Document& document : documents) {
    longest = std::max(longest, document.length);
    advice.tokens += document.length;
  }
  for (std::int64_t length = kShortestPackLength; length <= budget.tokens; length *= 2) {
    advice.choices.push_back(pack_choice(documents, length, budget.tokens));
    if (length >= longest) break;
  }
  advice.chosen = best_choice(advice.choices, longest);
  const PackChoice& choice = advice.choices[advice.chosen];

  advice.is_padded_given = padded.batch > 0;
  PaddedSetup setup = padded;
  if (!advice.is_padded_given) {
    setup.length = std::min(longest, std::min(kUsualPaddedLength, budget.tokens));
    setup.batch = std::max<std::int64_t>(budget.tokens / setup.length, 1);
  }
  advice.padded = padded_use(documents, setup);
  advice.batch_ratio = choice.tokens / advice.padded.tokens;
  const double row = static_cast<double>(choice.pack_length) * choice.fill_rate;
  advice.rows_for_same_batch = std::max<std::int64_t>(std::llround(advice.padded.tokens / row), 1);

  const auto packed_slots = static_cast<double>(choice.rows * choice.pack_length);
  const auto padded_slots = static_cast<double>(setup.batch) * static_cast<double>(setup.length);
  const double seconds = operator_seconds(shape, packed_slots, memory.kept);
  advice.operator_ms = 1e3 * seconds;
  advice.operator_us_per_token = 1e6 * seconds / choice.tokens;
  advice.padded_us_per_token = 1e6 * operator_seconds(shape, padded_slots, memory.kept) / advice.padded.tokens;
  return advice;
}

}  // namespace packjit
