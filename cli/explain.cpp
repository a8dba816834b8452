// packjit explain: which Config a shape gets on a GPU, and why.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/database_access.hpp"
#include "cli/kernel_report.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/lookup.hpp"
#include "database/record_json.hpp"
#include "database/shipped.hpp"
#include "runtime/config_choice.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

struct ExplainOptions {
  SpecOptions spec;
  Workload work{.tokens = 32'768, .sequences = 0, .dim = 4096, .longest = 0};
  int gpu = 0;
  std::string arch;
  std::vector<std::string> databases;
  bool json = false;
};

/// The GPU that is asked about: of this machine, of the first database, or only an architecture.
GpuProperties asked_gpu(const ExplainOptions& options, const std::vector<Database>& given) {
  if (!options.arch.empty()) {
    require_arch(options.arch);
    GpuProperties gpu;
    gpu.name = "any GPU";
    gpu.arch = options.arch;
    return gpu;
  }
  for (const Database& database : given) {
    if (database.gpu) return *database.gpu;
  }
  const DriverSurvey survey = survey_driver();
  if (options.gpu < 0 || static_cast<std::size_t>(options.gpu) >= survey.gpus.size()) {
    throw EnvironmentError(
        fmt::format("there is no GPU with number {} here{}; name an architecture (--arch sm_90) or "
                    "the database of a GPU (--database FILE)",
                    options.gpu, survey.problem.empty() ? "" : ": " + survey.problem));
  }
  return gpu_properties(survey.gpus[static_cast<std::size_t>(options.gpu)]);
}

Choice choice_of(const ExplainOptions& options, const std::vector<Database>& given, const GpuProperties& gpu) {
  const Spec spec = options.spec.spec();
  if (given.empty() && options.arch.empty()) return choose_config(spec, gpu, options.work);
  std::vector<const Database*> databases;
  databases.reserve(given.size());
  for (const Database& database : given) databases.push_back(&database);
  // An architecture alone is no model: what was tuned on any GPU of it counts.
  std::vector<Database> own;
  if (given.empty() && !database_location().off) {
    if (database_location().problem.empty()) {
      for (const auto& file : user_databases()) own.push_back(file->load());
    }
    for (const Database& database : own) databases.push_back(&database);
    for (const Database& database : shipped_databases()) databases.push_back(&database);
  }
  return look_up(databases, spec, gpu, options.work);
}

void run_explain(ExplainOptions options) {
  const Operator op = options.spec.op();
  Workload& work = options.work;
  if (work.longest == 0) work.longest = std::min<std::int64_t>(work.tokens, 2048);
  if (work.sequences == 0) work.sequences = (work.tokens + work.longest - 1) / work.longest;
  if (work.longest > work.tokens) {
    throw std::invalid_argument(
        fmt::format("--longest {}: the longest sequence has at most all tokens ({})", work.longest, work.tokens));
  }
  if (work.sequences > work.tokens) {
    throw std::invalid_argument(
        fmt::format("--sequences {}: there are at most as many as tokens ({})", work.sequences, work.tokens));
  }
  std::vector<Database> given;
  for (const std::string& path : options.databases) given.push_back(read_database(path));
  const GpuProperties gpu = asked_gpu(options, given);
  const Choice choice = choice_of(options, given, gpu);
  const bool tuned = op != Operator::sequence_map;
  const std::string bucket = tuned ? text_of(bucket_of(op, work), op) : "none";
  if (options.json) {
    nlohmann::ordered_json rejected = nlohmann::ordered_json::array();
    for (const RejectedStep& step : choice.rejected) {
      rejected.push_back(
          {{"outcome", name_of(step.outcome)},
           {"origin", step.origin.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(step.origin)},
           {"reason", step.reason}});
    }
    nlohmann::ordered_json config = nlohmann::ordered_json::object();
    for (const Field& field : config_fields(op))
      config[std::string(field.name)] = choice.config.values.text(field.name);
    const nlohmann::ordered_json report = {
        {"operator", name_of(op)},
        {"spec", options.spec.spec().values.text()},
        {"gpu", json_of(gpu)},
        {"shape",
         {{"tokens", work.tokens}, {"sequences", work.sequences}, {"longest", work.longest}, {"dim", work.dim}}},
        {"bucket", bucket},
        {"outcome", name_of(choice.outcome)},
        {"origin", choice.origin},
        {"config", config},
        {"rejected", rejected}};
    return print_result(report.dump(2) + "\n");
  }
  std::string text = fmt::format("{} {}\n", name_of(op), options.spec.spec().values.text());
  text += fmt::format("on      {} ({})\n", gpu.name, gpu.arch);
  text += fmt::format("shape   {} tokens, {} sequences, the longest of {}, dim {}\n", work.tokens, work.sequences,
                      work.longest, work.dim);
  text += fmt::format("bucket  {}\n", bucket);
  for (const RejectedStep& step : choice.rejected) {
    text += fmt::format("not     {}: {}{}\n", name_of(step.outcome), step.origin.empty() ? "" : step.origin + ": ",
                        step.reason);
  }
  text += fmt::format("taken   {}: {}\n", name_of(choice.outcome), choice.origin);
  text += fmt::format("config  {}\n", choice.config.values.text());
  print_result(text);
}

}  // namespace

void register_explain(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand("explain", "Shows which Config a shape gets on a GPU, and why");
  options->spec.add_operator_and_spec(*command);
  const auto size = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  command->add_option("--tokens", options->work.tokens, "tokens of all rows together")
      ->check(size)
      ->capture_default_str();
  command->add_option("--sequences", options->work.sequences, "sequences (default: tokens over the longest)")
      ->check(size);
  command->add_option("--longest", options->work.longest, "tokens of the longest (default: 2048, or all)")->check(size);
  command->add_option("--dim", options->work.dim, "channels")->check(size)->capture_default_str();
  CLI::Option* gpu =
      command->add_option("--gpu", options->gpu, "number of a GPU of this machine")->capture_default_str();
  CLI::Option* arch =
      command->add_option("--arch", options->arch, "an architecture instead of a GPU of this machine, such as sm_90")
          ->type_name("ARCH")
          ->check(not_empty("an architecture such as sm_90"));
  command
      ->add_option("--database", options->databases,
                   "documents to look into instead of this user's and the shipped ones; asks about their GPU")
      ->type_name("FILE")
      ->check(not_empty("a file"));
  gpu->excludes(arch);
  command->add_flag("--json", options->json, "prints JSON");
  command->callback([options] { run_explain(*options); });
}

}  // namespace packjit
