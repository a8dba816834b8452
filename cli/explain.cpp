// packjit explain: which Config a shape gets on a GPU, and why.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "cli/config_question.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/printable.hpp"
#include "database/record_json.hpp"

namespace packjit {
namespace {

struct ExplainOptions {
  SpecOptions spec;
  ConfigQuestion question;
  bool json = false;
};

void run_explain(const ExplainOptions& options) {
  const Operator op = options.spec.op();
  const Workload work = options.question.shape();
  const auto [gpu, choice] = options.question.answer(options.spec.spec());
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
    return print_result(dump_text(report, 2) + "\n");
  }
  std::string text = fmt::format("{} {}\n", name_of(op), options.spec.spec().values.text());
  text += fmt::format("on      {} ({})\n", printable(gpu.name), gpu.arch);
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
  options->question.add_shape(*command);
  options->question.add_gpu(*command);
  command->add_flag("--json", options->json, "prints JSON");
  command->callback([options] { run_explain(*options); });
}

}  // namespace packjit
