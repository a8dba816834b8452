// packjit tune: finds the fastest Config for shapes on the GPU at hand, and keeps them in the user's database.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "cli/commands.hpp"
#include "cli/date.hpp"
#include "cli/lengths_file.hpp"
#include "cli/output_file.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "runtime/errors.hpp"
#include "tuning/capture.hpp"
#include "tuning/database_store.hpp"
#include "tuning/gpu_bench.hpp"
#include "tuning/report.hpp"
#include "tuning/targets.hpp"
#include "tuning/trial_json.hpp"
#include "tuning/worker_bench.hpp"

namespace packjit {
namespace {

constexpr const char* kWorkerCommand = "tune-worker";

struct Options {
  std::vector<std::string> ops;
  std::vector<std::int64_t> dims;
  OperatorChoices choices;
  std::optional<std::int64_t> tokens, sequences, longest;
  ShapeOptions shape;
  std::string lengths;
  std::string capture;
  TuningRunOptions run;
  std::optional<double> most;  ///< seconds
  std::int64_t seed = 1;       ///< signed, so that a negative one is seen
  bool has_choices = false;    ///< d_state, conv_width or dtype was given
  std::string report;
  bool json = false;
};

void check_options(const Options& options) {
  const int sources = (options.lengths.empty() ? 0 : 1) + (options.capture.empty() ? 0 : 1) + (options.tokens ? 1 : 0);
  if (sources > 1) {
    throw std::invalid_argument(
        "tune: --tokens, --lengths and --from-capture each say which shapes to tune for; give one of them, or none for "
        "all buckets of the dims");
  }
  if (options.capture.empty() && options.dims.empty()) {
    throw std::invalid_argument("tune: --dim is missing: the channels of your model's layers, as in --dim 4096");
  }
  if (!options.capture.empty() && (!options.dims.empty() || !options.ops.empty() || options.has_choices)) {
    throw std::invalid_argument(
        "tune: a capture says which operators, dims and options there were; leave OP, --dim, --d-state, --conv-width "
        "and "
        "--dtype out");
  }
  if (options.lengths.empty() && (options.shape.rows || options.shape.pack_length || options.shape.method)) {
    throw std::invalid_argument(
        "tune: --rows, --pack-length and --method say how --lengths are packed, which is missing");
  }
  if (!options.tokens && (options.sequences || options.longest)) {
    throw std::invalid_argument("tune: --sequences and --longest describe a shape of --tokens, which is missing");
  }
  const auto check_size = [](std::string_view option, std::int64_t size) {
    if (size < 1 || size > kMaximumLength) {
      throw std::invalid_argument(fmt::format("tune: {} must be 1 to {}, found {}", option, kMaximumLength, size));
    }
  };
  for (const std::int64_t dim : options.dims) check_size("--dim", dim);
  if (options.tokens) check_size("--tokens", *options.tokens);
  if (options.sequences) check_size("--sequences", *options.sequences);
  if (options.longest) check_size("--longest", *options.longest);
  if (!(options.run.seconds > 0)) {  // nor a NaN
    throw std::invalid_argument(fmt::format("tune: --budget must be above 0 seconds, found {}", options.run.seconds));
  }
  if (options.most && !(*options.most > 0)) {
    throw std::invalid_argument(fmt::format("tune: --most must be above 0 seconds, found {}", *options.most));
  }
  if (options.seed < 0) {
    throw std::invalid_argument(fmt::format("tune: --seed must not be negative, found {}", options.seed));
  }
}

std::vector<TuningTarget> targets_of(const Options& options) {
  if (!options.capture.empty()) return targets_of_capture(read_capture_file(options.capture));
  const std::vector<Operator> ops = chosen_operators(options.ops);
  if (options.tokens) {
    const std::int64_t sequences = options.sequences.value_or(1);
    const std::int64_t longest = options.longest.value_or((*options.tokens + sequences - 1) / sequences);
    const BatchShape batch = batch_of({*options.tokens, sequences, 1, longest});
    return targets_of_batch(batch, ops, options.dims, options.choices);
  }
  if (!options.lengths.empty()) {
    ShapeOptions shape = options.shape;
    shape.lengths_file = true;
    return targets_of_batch(batch_shape(shape, read_lengths_file(options.lengths)), ops, options.dims, options.choices);
  }
  return targets_of_buckets(ops, options.dims, options.choices);
}

std::string_view name_of(TargetOutcome::Kind kind) {
  switch (kind) {
    case TargetOutcome::Kind::tuned:
      return "tuned";
    case TargetOutcome::Kind::done_before:
      return "done before";
    case TargetOutcome::Kind::no_time:
      return "no time left";
    case TargetOutcome::Kind::failed:
      return "failed";
  }
  return {};
}

/// What there is to use for a target now.
const std::optional<Entry>& entry_of(const TargetOutcome& outcome) {
  return outcome.result.entry ? outcome.result.entry : outcome.before;
}

nlohmann::ordered_json json_of(const TuningTarget& target, const TargetOutcome& outcome) {
  nlohmann::ordered_json json = {{"target", packjit::json_of(target)},
                                 {"outcome", name_of(outcome.kind)},
                                 {"seconds", outcome.seconds},
                                 {"cut_short", outcome.result.cut_short}};
  if (!outcome.result.problem.empty()) json["problem"] = outcome.result.problem;
  if (const std::optional<Entry>& entry = entry_of(outcome)) json["entry"] = packjit::json_of(*entry);
  json["candidates"] = nlohmann::ordered_json::array();
  for (const TriedCandidate& tried : outcome.result.tried) {
    json["candidates"].push_back({{"config", tried.config.values.text()},
                                  {"ratio", tried.ratio},
                                  {"median_ms", tried.median_ms},
                                  {"rounds", tried.rounds}});
  }
  json["failed"] = nlohmann::ordered_json::array();
  for (const FailedCandidate& failed : outcome.result.failed) {
    json["failed"].push_back({{"config", failed.config.values.text()}, {"reason", failed.reason}});
  }
  return json;
}

/// REPORT/tuning.md, and a picture for each target that was tuned.
void write_report(const std::string& folder, std::span<const TuningTarget> targets,
                  std::span<const TargetOutcome> outcomes, const std::string& table) {
  std::filesystem::create_directories(folder);
  std::string pages = table;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (outcomes[i].result.tried.empty()) continue;
    const std::string name = fmt::format("target_{}.svg", i + 1);
    OutputFile picture(fmt::format("{}/{}", folder, name));
    picture.write(tuning_picture(targets[i], outcomes[i].result));
    picture.commit();
    pages += fmt::format("\n![{}]({})\n", label_of(targets[i]), name);
  }
  OutputFile page(folder + "/tuning.md");
  page.write(pages);
  page.commit();
}

void tune_command(Options options, const std::string& command) {
  check_options(options);
  const std::vector<TuningTarget> targets = targets_of(options);
  if (const DriverSurvey survey = survey_driver(); survey.gpus.empty()) {
    throw EnvironmentError(fmt::format(
        "tune measures on a GPU, and there is none to use here: {}. Run it on the machine with the GPU, and "
        "take the database from there with `packjit db merge`. Here, `packjit explain` shows which Config a "
        "shape gets on a GPU, and `packjit compile --arch` what it needs",
        survey.problem));
  }
  options.run.each.date = this_second();
  options.run.each.seed = static_cast<std::uint64_t>(options.seed);
  options.run.most_seconds = options.most.value_or(0);
  WorkerBench bench({.command = {"/proc/self/exe", kWorkerCommand}});
  DatabaseStore store(bench.gpu(), bench.nvrtc(), bench.driver());

  using SteadyClock = std::chrono::steady_clock;
  const SteadyClock::time_point begin = SteadyClock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(SteadyClock::now() - begin).count(); };
  Progress progress("tuning", static_cast<std::int64_t>(targets.size()));
  TuningRunEvents events;
  events.progress = [&](const std::string& label, int done, int total) {
    progress.set_label(fmt::format("{} ({} of {} candidates)", label, done, total));
  };
  events.finished = [&](const TuningTarget&, const TargetOutcome&) { progress.advance(); };
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, options.run, seconds, events);
  store.finish();

  std::vector<Entry> entries;
  std::vector<FailedCandidate> failed;
  std::int64_t counts[4] = {};
  for (const TargetOutcome& outcome : outcomes) {
    ++counts[static_cast<std::size_t>(outcome.kind)];
    if (entry_of(outcome)) entries.push_back(*entry_of(outcome));
    failed.insert(failed.end(), outcome.result.failed.begin(), outcome.result.failed.end());
  }
  const std::string table = tuning_table(entries, failed);
  if (!options.report.empty()) write_report(options.report, targets, outcomes, table);
  if (options.json) {
    nlohmann::ordered_json json = {{"date", options.run.each.date},
                                   {"command", command},
                                   {"gpu", packjit::json_of(bench.gpu())},
                                   {"nvrtc", bench.nvrtc()},
                                   {"driver", bench.driver()},
                                   {"seconds", seconds()},
                                   {"targets", nlohmann::ordered_json::array()}};
    for (std::size_t i = 0; i < targets.size(); ++i) json["targets"].push_back(json_of(targets[i], outcomes[i]));
    print_result(dump_text(json, 1) + "\n");
    return;
  }
  std::string text = table;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (outcomes[i].kind == TargetOutcome::Kind::failed) {
      text += fmt::format("\n{}: {}\n", label_of(targets[i]), outcomes[i].result.problem);
    }
  }
  text += fmt::format("\n{} of {} targets tuned, {} done before, {} without time, {} failed; {:.0f} s. Kept in {}\n",
                      counts[0], targets.size(), counts[1], counts[2], counts[3], seconds(), store.path());
  print_result(text);
}

}  // namespace

void register_tune(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tune", "find the fastest Config on this GPU for shapes, into the database");
  const auto options = std::make_shared<Options>();
  OperatorChoices& choices = options->choices;
  ShapeOptions& shape = options->shape;
  TuningRunOptions& run = options->run;
  command->add_option("OP", options->ops, "operators (all)");
  command->add_option("--dim", options->dims, "channels, one or more");
  command->add_option("--d-state", choices.d_state, "states of a channel")->capture_default_str();
  command->add_option("--conv-width", choices.conv_width, "taps")->capture_default_str();
  command->add_option("--dtype", choices.dtype, "fp32, fp16 or bf16")->capture_default_str();
  command->add_option("--tokens", options->tokens, "one shape in place of all buckets: tokens of all rows");
  command->add_option("--sequences", options->sequences, "of --tokens: how many sequences (1)");
  command->add_option("--longest", options->longest, "of --tokens: tokens of the longest sequence (equal lengths)");
  command
      ->add_option("--lengths", options->lengths,
                   "a real mix in place of all buckets: file of lengths, of which the first --rows full rows of "
                   "--pack-length tokens are one batch")
      ->type_name("FILE");
  command->add_option("--rows", shape.rows, "rows of the batch, for --lengths");
  command->add_option("--pack-length", shape.pack_length, "tokens of a row, for --lengths");
  command->add_option("--method", shape.method, "how --lengths are packed, local-greedy by default");
  command->add_option("--from-capture", options->capture, "shapes that PACKJIT_CAPTURE recorded in an application")
      ->type_name("FILE");
  command->add_option("--budget", run.seconds, "seconds for everything; the same command goes on from there")
      ->capture_default_str();
  command->add_option("--most", options->most, "seconds for one target at most (its share of what is left)");
  command->add_flag("--exhaustive", run.each.exhaustive, "try the whole search space");
  command->add_flag("--again", run.again, "also what the database has for the present versions");
  command->add_option("--seed", options->seed, "of the order of candidates")->capture_default_str();
  command->add_option("--report", options->report, "folder for a page in Markdown and a picture of each target")
      ->type_name("FOLDER");
  command->add_flag("--json", options->json, "print JSON, with every candidate's time");
  command->callback([options, command] {
    for (const char* name : {"--d-state", "--conv-width", "--dtype"}) {
      options->has_choices = options->has_choices || command->get_option(name)->count() > 0;
    }
    tune_command(*options, "packjit tune" + given_options(*command, {"--lengths", "--from-capture", "--report"}));
  });

  // The process that tries candidates.
  CLI::App* worker = app.add_subcommand(kWorkerCommand)->group("");
  worker->callback([] {
    end_with_parent();
    GpuBench bench(CudaDevice::open(), std::thread::hardware_concurrency());
    serve_trials(bench, std::cin, std::cout);
  });
}

}  // namespace packjit
