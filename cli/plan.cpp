// packjit plan: what pack length, batch and learning rate to begin with, and what packing will bring; every number with
// the arithmetic that leads to it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "cli/commands.hpp"
#include "cli/lengths_file.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "packing/planning.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  std::string lengths;
  std::string model;
  MambaShape shape;
  MemoryOptions memory;
  std::string dtype = "bf16";
  std::string optimizer = "adamw";
  std::string keep = "activations";
  PaddedSetup padded;
  bool json = false;
};

constexpr const char* kKept[] = {"all", "activations", "layer-inputs"};  // in the order of Kept

/// "1,372,178,432"
std::string grouped(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string grouped(double value) { return grouped(static_cast<std::int64_t>(std::llround(value))); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string gigabytes(std::int64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); }

std::string line(std::string_view label, std::string_view value, std::string_view arithmetic) {
  return fmt::format("  {:<22} {:>14}   {}\n", label, value, arithmetic);
}

std::string text_of(const MambaShape& shape, const ParameterCount& count) {
  const std::int64_t inner = shape.d_inner();
  std::string text =
      fmt::format("Parameters of a Mamba with {} layers, d_model {}, d_inner {} = {} x {}, dt_rank {}, d_state {}:\n",
                  shape.layers, shape.d_model, inner, shape.expand, shape.d_model, shape.dt_rank(), shape.d_state);
  text += line("input projection", grouped(count.in_projection), fmt::format("{} x 2 x {}", shape.d_model, inner));
  text +=
      line("convolution", grouped(count.convolution), fmt::format("{} x ({} taps + bias)", inner, shape.conv_width));
  text += line("dt, B, C", grouped(count.x_projection),
               fmt::format("{} x ({} + 2 x {})", inner, shape.dt_rank(), shape.d_state));
  text += line("delta", grouped(count.dt_projection), fmt::format("({} + bias) x {}", shape.dt_rank(), inner));
  text += line("A, D", grouped(count.scan), fmt::format("{} x ({} + 1)", inner, shape.d_state));
  text += line("output projection", grouped(count.out_projection), fmt::format("{} x {}", inner, shape.d_model));
  text += line("norm", grouped(count.norm), "d_model");
  text += line("a layer", grouped(count.layer), "the sum of these");
  text += line("embedding", grouped(count.embedding),
               fmt::format("{} x {}, the vocabulary as a multiple of 8; the logits use it too",
                           shape.padded_vocabulary(), shape.d_model));
  text += line("all", grouped(count.total),
               fmt::format("{} x {} + {} + {} of the last norm", shape.layers, grouped(count.layer),
                           grouped(count.embedding), grouped(count.final_norm)));
  return text;
}

std::string text_of(const MambaShape& shape, const MemoryBudget& budget, const PlanArguments& arguments) {
  std::string text = fmt::format("Memory, {} with {}, for the backward is kept: {}:\n", arguments.dtype,
                                 arguments.optimizer, arguments.keep);
  text += line("GPU", gigabytes(budget.gpu), "10^9 bytes each");
  text += line("in reserve", gigabytes(budget.reserve), "for the driver, libraries, fragmentation (--reserve)");
  text += line("model", gigabytes(budget.model),
               fmt::format("parameters x {} bytes: weight, gradient, fp32 copy, optimizer; not divided over GPUs",
                           budget.bytes_per_parameter));
  if (budget.logits > 0) text += line("logits", gigabytes(budget.logits), "of --logits-tokens at once");
  text += line("left", gigabytes(budget.left), "for the tokens of a step");
  text += line("a token", grouped(budget.token),
               fmt::format("bytes: {} x {} kept by a layer + {} of the layer that runs + {} of logits", shape.layers,
                           grouped(budget.layer_token), grouped(budget.passing_token), grouped(budget.logits_token)));
  text += line("tokens that fit", grouped(budget.tokens), "left / a token");
  return text;
}

std::string text_of_sample(const Advice& advice) {
  if (!advice.is_sample_small()) return "";
  const PackChoice& choice = advice.choices[advice.chosen];
  return fmt::format(
      "TOO FEW LENGTHS: {} documents with {} tokens, and a step holds {}. What follows is about these documents, not "
      "about\n"
      "a training set: give at least {} documents and {} steps of tokens, a random sample of yours.\n\n",
      grouped(advice.documents), grouped(advice.tokens), grouped(choice.rows * choice.pack_length), kFewestDocuments,
      kFewestSteps);
}

std::string text_of_choices(const Advice& advice) {
  std::string text =
      fmt::format("Pack length, these lengths packed by local-greedy:\n  {:>11} {:>6} {:>10} {:>14} {:>14} {:>14}\n",
                  "pack length", "rows", "fill rate", "documents cut", "tokens a step", "sequences");
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {
    const PackChoice& choice = advice.choices[i];
    text += fmt::format("  {:>11} {:>6} {:>10} {:>14} {:>14} {:>14.1f}{}\n", grouped(choice.pack_length),
                        grouped(choice.rows), percent(choice.fill_rate), grouped(choice.documents_cut),
                        grouped(choice.tokens), choice.sequences, i == advice.chosen ? "   proposed" : "");
  }
  text +=
      "  Proposed is the longest that keeps three quarters of the most tokens a step, and no longer than the "
      "documents\n"
      "  need: longer rows cut fewer documents. Cut ones hand their states over from step to step.\n";
  return text;
}

std::string text_of_batch(const Advice& advice) {
  const PackChoice& choice = advice.choices[advice.chosen];
  const PaddedUse& padded = advice.padded;
  std::string text = fmt::format(
      "Batch, against {} sequences padded to {}{}:\n", grouped(padded.setup.batch), grouped(padded.setup.length),
      advice.is_padded_given ? "" : " (what the same memory holds; --batch and --padded-length give yours)");
  text += line("padded", grouped(padded.tokens),
               fmt::format("real tokens a step, {} sequences; {} of its tokens are real", grouped(padded.setup.batch),
                           percent(padded.fill_rate)));
  if (padded.dropped > 0)
    text += line("", percent(padded.dropped), "of all tokens are dropped: documents longer than that");
  text += line("packed", grouped(choice.tokens),
               fmt::format("real tokens a step = {} x {} x {}; {:.1f} sequences", choice.rows, choice.pack_length,
                           percent(choice.fill_rate), choice.sequences));
  text += line("batch grows by", fmt::format("{:.2f}", advice.batch_ratio),
               fmt::format("{} / {}", grouped(choice.tokens), grouped(padded.tokens)));
  const double row_tokens = static_cast<double>(choice.pack_length) * choice.fill_rate;
  const double same_tokens = static_cast<double>(advice.rows_for_same_batch) * row_tokens;
  text += line("nearest to the same", grouped(advice.rows_for_same_batch),
               fmt::format("rows of {}: {:.2f} times the padded step's tokens; at 1 nothing has to be scaled",
                           grouped(choice.pack_length), same_tokens / padded.tokens));
  text += line("learning rate x", fmt::format("{:.2f}", advice.linear_scale()),
               "linear rule: for SGD, with warm-up, below the batch size from which more tokens bring nothing");
  text += line("or x", fmt::format("{:.2f}", advice.square_root_scale()),
               "square-root rule: for Adam and its kin, whose steps do not grow with the gradient");
  text +=
      "  Both hold for a loss that is a mean over tokens, and neither is a law: begin with the square root, and watch "
      "the\n"
      "  first thousand steps. A mean over sequences weighs long documents less; compare like with like.\n";
  return text;
}

std::string text_of_gain(const MambaShape& shape, const Advice& advice, Kept kept) {
  const CostTable& table = cost_table(kept);
  const PackChoice& choice = advice.choices[advice.chosen];
  std::string text = fmt::format("What to expect; operators measured on one {}, {}, dim {}, d_state {}, bf16 ({}):\n",
                                 table.gpu, table.date, table.dim, table.d_state, table.source);
  for (const MeasuredOperator& measured : table.operators) {
    text += line(measured.name, fmt::format("{:.3f} ms", measured.ms_32768),
                 fmt::format("32,768 tokens; {:.3f} ms for 4,096; between and beyond a straight line{}",
                             measured.ms_4096, measured.again ? "; run again by the backward" : ""));
  }
  text += line("operators of a step", fmt::format("{:.1f} ms", advice.operator_ms),
               fmt::format("{} layers x {} / {} channels, {} tokens", shape.layers, shape.d_inner(), table.dim,
                           grouped(choice.rows * choice.pack_length)));
  text += line("of a real token", fmt::format("{:.2f} us", advice.operator_us_per_token), "packed");
  text += line("", fmt::format("{:.2f} us", advice.padded_us_per_token), "padded, by the same kernels");
  text += line("speed-up", fmt::format("{:.1f} x", advice.operator_speedup()), "of the operators");
  text += line("", fmt::format("{:.1f} x", advice.padding_speedup()),
               fmt::format("of all that costs padding as much as text (matrix products): {} / {}",
                           percent(choice.fill_rate), percent(advice.padded.fill_rate)));
  return text;
}

Json json_of(const MambaShape& shape, const Advice& advice, const PlanArguments& arguments) {
  const ParameterCount& count = advice.parameters;
  const MemoryBudget& memory = advice.memory;
  const PackChoice& choice = advice.choices[advice.chosen];
  const CostTable& table = cost_table(arguments.memory.kept);
  Json choices = Json::array();
  for (const PackChoice& each : advice.choices) {
    choices.push_back({{"pack_length", each.pack_length},
                       {"rows", each.rows},
                       {"fill_rate", each.fill_rate},
                       {"documents_cut", each.documents_cut},
                       {"tokens", each.tokens},
                       {"sequences", each.sequences}});
  }
  return {{"model",
           {{"layers", shape.layers},
            {"d_model", shape.d_model},
            {"d_inner", shape.d_inner()},
            {"d_state", shape.d_state},
            {"dt_rank", shape.dt_rank()},
            {"conv_width", shape.conv_width},
            {"vocabulary", shape.padded_vocabulary()}}},
          {"parameters", {{"layer", count.layer}, {"embedding", count.embedding}, {"total", count.total}}},
          {"memory",
           {{"dtype", arguments.dtype},
            {"optimizer", arguments.optimizer},
            {"keep", arguments.keep},
            {"gpu_bytes", memory.gpu},
            {"reserve_bytes", memory.reserve},
            {"bytes_per_parameter", memory.bytes_per_parameter},
            {"model_bytes", memory.model},
            {"logits_bytes", memory.logits},
            {"left_bytes", memory.left},
            {"layer_token_bytes", memory.layer_token},
            {"passing_token_bytes", memory.passing_token},
            {"logits_token_bytes", memory.logits_token},
            {"token_bytes", memory.token},
            {"tokens", memory.tokens}}},
          {"documents", advice.documents},
          {"tokens", advice.tokens},
          {"sample_is_small", advice.is_sample_small()},
          {"choices", choices},
          {"pack_length", choice.pack_length},
          {"rows", choice.rows},
          {"fill_rate", choice.fill_rate},
          {"tokens_a_step", choice.tokens},
          {"sequences_a_step", choice.sequences},
          {"padded",
           {{"given", advice.is_padded_given},
            {"batch", advice.padded.setup.batch},
            {"length", advice.padded.setup.length},
            {"tokens_a_step", advice.padded.tokens},
            {"fill_rate", advice.padded.fill_rate},
            {"dropped", advice.padded.dropped}}},
          {"batch_ratio", advice.batch_ratio},
          {"rows_for_same_batch", advice.rows_for_same_batch},
          {"learning_rate_scale", {{"linear", advice.linear_scale()}, {"square_root", advice.square_root_scale()}}},
          {"expected",
           {{"gpu", table.gpu},
            {"date", table.date},
            {"source", table.source},
            {"operator_ms", advice.operator_ms},
            {"operator_us_per_token", advice.operator_us_per_token},
            {"padded_us_per_token", advice.padded_us_per_token},
            {"operator_speedup", advice.operator_speedup()},
            {"padding_speedup", advice.padding_speedup()}}}};
}

template <std::size_t Count>
std::size_t index_of(const std::string& value, const char* const (&names)[Count], std::string_view option) {
  std::string known;
  for (std::size_t i = 0; i < Count; ++i) {
    if (value == names[i]) return i;
    known += (known.empty() ? "" : ", ") + std::string(names[i]);
  }
  throw std::invalid_argument(fmt::format("plan: {} must be one of {}, found '{}'", option, known, value));
}

void run_plan(PlanArguments arguments, bool has_shape) {
  MambaShape shape = arguments.shape;
  if (arguments.model.empty() == !has_shape) {
    throw std::invalid_argument("plan: give either --model, or --layers and --d-model");
  }
  if (!arguments.model.empty()) shape = mamba_shape_named(arguments.model);
  if ((arguments.padded.batch != 0) != (arguments.padded.length != 0)) {
    throw std::invalid_argument("plan: --batch and --padded-length describe a padded set-up together; give both");
  }
  constexpr const char* kDtypes[] = {"fp32", "fp16", "bf16"};
  arguments.memory.element_bytes = index_of(arguments.dtype, kDtypes, "--dtype") == 0 ? 4 : 2;
  arguments.memory.kept = static_cast<Kept>(index_of(arguments.keep, kKept, "--keep"));
  arguments.memory.optimizer = arguments.optimizer;
  const Advice advice = advise(shape, arguments.memory, read_lengths_file(arguments.lengths), arguments.padded);
  if (arguments.json) {
    print_result(dump_text(json_of(shape, advice, arguments), 2) + "\n");
    return;
  }
  const PackChoice& choice = advice.choices[advice.chosen];
  print_result(text_of_sample(advice) + text_of(shape, advice.parameters) + "\n" +
               text_of(shape, advice.memory, arguments) + "\n" + text_of_choices(advice) + "\n" +
               text_of_batch(advice) + "\n" + text_of_gain(shape, advice, arguments.memory.kept) +
               fmt::format("\nBegin with: packjit pack --pack-length {} --rows-per-call {} --lengths {}\n",
                           choice.pack_length, choice.rows, shell_word(arguments.lengths)));
}

}  // namespace

void register_plan(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "pack length, batch size and learning-rate scale for a model, a GPU and these lengths");
  MambaShape& shape = arguments->shape;
  MemoryOptions& memory = arguments->memory;
  std::string models = "a published Mamba:";
  for (const NamedMambaShape& named : named_mamba_shapes()) models += fmt::format(" {}", named.name);
  std::string optimizers = "what the optimizer keeps of a parameter:";
  for (const OptimizerChoice& choice : optimizer_choices()) {
    optimizers += fmt::format(" {} ({});", choice.name, choice.meaning);
  }
  optimizers.pop_back();
  command->add_option("--lengths", arguments->lengths, "file of lengths as `packjit pack` takes it")
      ->type_name("FILE")
      ->required();
  command->add_option("--gpu-memory", memory.gpu_gigabytes, "memory of the GPU in GB of 10^9 bytes")->required();
  command->add_option("--model", arguments->model, models);
  const CLI::Option* layers = command->add_option("--layers", shape.layers, "layers, in place of --model");
  const CLI::Option* d_model = command->add_option("--d-model", shape.d_model, "width, in place of --model");
  std::vector<const CLI::Option*> details = {
      command->add_option("--d-state", shape.d_state, "states of a channel, 16 by default"),
      command->add_option("--expand", shape.expand, "channels for each of d_model, 2 by default"),
      command->add_option("--conv-width", shape.conv_width, "taps, 4 by default"),
      command->add_option("--vocabulary", shape.vocabulary, "tokens of the vocabulary, 50280 by default")};
  command->add_option("--dtype", arguments->dtype, "of weights and activations: fp32, fp16 or bf16")
      ->capture_default_str();
  command->add_option("--optimizer", arguments->optimizer, optimizers)->capture_default_str();
  command
      ->add_option("--keep", arguments->keep,
                   "what the forward keeps for the backward: all (the scan's checkpoints too), activations, or "
                   "layer-inputs (the backward runs each layer's forward again)")
      ->capture_default_str();
  command->add_option("--logits-tokens", memory.logits_tokens,
                      "the loss is computed in parts of so many tokens (default: of all at once)");
  command->add_option("--reserve", memory.reserve, "share of the memory that is left alone")->capture_default_str();
  const CLI::Option* batch = command->add_option("--batch", arguments->padded.batch, "sequences of your padded step");
  const CLI::Option* length =
      command->add_option("--padded-length", arguments->padded.length, "tokens each of them is padded to");
  command->add_flag("--json", arguments->json, "print JSON");
  command->callback([arguments, layers, d_model, details, batch, length] {
    if ((layers->count() > 0) != (d_model->count() > 0)) {
      throw std::invalid_argument("plan: --layers and --d-model describe a model together; give both");
    }
    for (const CLI::Option* detail : details) {
      if (detail->count() > 0 && layers->count() == 0) {
        throw std::invalid_argument(
            fmt::format("plan: {} belongs to --layers and --d-model; a named model has its own", detail->get_name()));
      }
    }
    for (const CLI::Option* option : {batch, length}) {
      const std::int64_t value = option == batch ? arguments->padded.batch : arguments->padded.length;
      if (option->count() > 0 && value < 1) {
        throw std::invalid_argument(fmt::format("plan: {} must be at least 1, found {}", option->get_name(), value));
      }
    }
    run_plan(*arguments, layers->count() > 0);
  });
}

}  // namespace packjit
