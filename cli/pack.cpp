#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/lengths_file.hpp"
#include "cli/output_file.hpp"
#include "cli/plan_file.hpp"
#include "cli/terminal.hpp"
#include "packing/packing.hpp"
#include "packing/statistics.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

struct PackArguments {
  std::string lengths;
  std::string method = "local-greedy";
  PackOptions options;
  std::int64_t seed = 0;  ///< signed, so that a negative one is seen
  std::string out;
  bool compare = false;
  bool json = false;
};

/// "6,503,676"
std::string grouped(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

Json json_of(const PackPlan& plan, const PackStatistics& statistics) {
  return {{"method", plan.method},
          {"fill_rate", statistics.fill_rate},
          {"rows", statistics.rows},
          {"calls", statistics.calls},
          {"pieces", statistics.pieces},
          {"documents_cut", statistics.documents_cut},
          {"padding_tokens", statistics.padding()},
          {"padding_avoided",
           {{"to_pack_length", statistics.avoided_to_pack_length()}, {"to_longest", statistics.avoided_to_longest()}}},
          {"order_drift", {{"mean", statistics.mean_order_drift}, {"largest", statistics.largest_order_drift}}},
          {"handover_distance",
           {{"mean", statistics.mean_handover_distance}, {"largest", statistics.largest_handover_distance}}}};
}

Json json_of_input(const PackPlan& plan, const PackStatistics& statistics) {
  const PackOptions& options = plan.options;
  return {{"pack_length", options.pack_length},     {"cut", options.cut},
          {"rows_per_call", options.rows_per_call}, {"window", options.window},
          {"open_packs", options.open_packs},       {"seed", options.seed},
          {"documents", statistics.documents},      {"tokens", statistics.tokens},
          {"longest", statistics.longest}};
}

std::string line(std::string_view label, std::string_view value, std::string_view remark) {
  return fmt::format("  {:<16} {:>14}   {}\n", label, value, remark);
}

std::string text_of_input(const PackPlan& plan, const PackStatistics& statistics) {
  return fmt::format("{} documents, {} tokens, the longest {}. Rows of {} tokens.\n", grouped(statistics.documents),
                     grouped(statistics.tokens), grouped(statistics.longest), grouped(plan.options.pack_length));
}

std::string text_of(const PackPlan& plan, const PackStatistics& statistics) {
  const auto padded_fill = [&](std::int64_t padded_tokens) {
    return percent(static_cast<double>(statistics.tokens) / static_cast<double>(padded_tokens));
  };
  std::string text = fmt::format("Packed by {}:\n", plan.method);
  text += line("fill rate", percent(statistics.fill_rate), "of all tokens in the rows are real");
  text +=
      line("rows", grouped(statistics.rows),
           fmt::format("in {} calls of at most {}", grouped(statistics.calls), grouped(plan.options.rows_per_call)));
  text += line("padding", grouped(statistics.padding()), "tokens, at the ends of rows");
  text += line("padding avoided", grouped(statistics.avoided_to_pack_length()),
               fmt::format("tokens against one document or piece a row of {} ({} real)",
                           grouped(plan.options.pack_length), padded_fill(statistics.padded_to_pack_length)));
  text += line("", grouped(statistics.avoided_to_longest()),
               fmt::format("tokens against padding each document to the longest ({} real)",
                           padded_fill(statistics.padded_to_longest)));
  text += line("documents cut", grouped(statistics.documents_cut),
               fmt::format("longer than {}; {} pieces in all", grouped(plan.options.cut), grouped(statistics.pieces)));
  if (statistics.documents_cut > 0) {
    text += line("state hand-over", fmt::format("{:.1f}", statistics.mean_handover_distance),
                 fmt::format("calls from a piece to the next on average, {} at most",
                             grouped(statistics.largest_handover_distance)));
  }
  text += line("order drift", fmt::format("{:.1f}", statistics.mean_order_drift),
               fmt::format("places a document moved on average, {} at most", grouped(statistics.largest_order_drift)));
  return text;
}

struct Comparison {
  std::string table = fmt::format("\n  {:<14} {:>10} {:>10} {:>10} {:>14} {:>12}\n", "method", "fill rate", "rows",
                                  "calls", "padding", "order drift");
  Json json = Json::array();
};

Comparison compare_methods(const std::vector<Document>& documents, const PackOptions& options) {
  Comparison comparison;
  for (const PackMethod& method : pack_methods()) {
    const PackPlan plan = method.plan(documents, options);
    const PackStatistics statistics = statistics_of(plan, documents);
    comparison.table += fmt::format("  {:<14} {:>10} {:>10} {:>10} {:>14} {:>12.1f}\n", plan.method,
                                    percent(statistics.fill_rate), grouped(statistics.rows), grouped(statistics.calls),
                                    grouped(statistics.padding()), statistics.mean_order_drift);
    comparison.json.push_back(json_of(plan, statistics));
  }
  return comparison;
}

void run_pack(const PackArguments& arguments) {
  const PackMethod& method = pack_method_named(arguments.method);
  const std::vector<Document> documents = read_lengths_file(arguments.lengths);
  const PackPlan plan = method.plan(documents, arguments.options);
  const PackStatistics statistics = statistics_of(plan, documents);
  if (!arguments.out.empty()) write_output_file(arguments.out, plan_json(plan));

  Comparison comparison;
  if (arguments.compare) comparison = compare_methods(documents, arguments.options);
  if (arguments.json) {
    Json report = json_of_input(plan, statistics);
    report.update(json_of(plan, statistics));
    if (arguments.compare) report["methods"] = comparison.json;
    print_result(report.dump(2) + "\n");
    return;
  }
  std::string text = text_of_input(plan, statistics) + text_of(plan, statistics);
  if (arguments.compare) text += comparison.table;
  if (!arguments.out.empty()) text += fmt::format("The plan is in {}.\n", arguments.out);
  print_result(text);
}

std::string method_help() {
  std::string help = "how to pack:";
  for (const PackMethod& method : pack_methods()) help += fmt::format(" {} ({});", method.name, method.meaning);
  help.pop_back();
  return help;
}

}  // namespace

void register_pack(CLI::App& app) {
  const auto arguments = std::make_shared<PackArguments>();
  PackOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("pack", "packs document lengths into rows and says what that saves");
  command
      ->add_option("--lengths", arguments->lengths,
                   "file with one length in tokens a line, or JSON Lines with \"length\" and optional \"breaks\"")
      ->required();
  command->add_option("--pack-length", options.pack_length, "tokens of a row")->required();
  command->add_option("--method", arguments->method, method_help())->capture_default_str();
  const CLI::Option* cut = command->add_option(
      "--cut", options.cut, "cut documents longer than this, at breaks where there are any (default: the pack length)");
  command
      ->add_option("--rows-per-call", options.rows_per_call,
                   "rows that run side by side in one call; the pieces of a cut document go to different calls")
      ->capture_default_str();
  command->add_option("--window", options.window, "local-greedy: documents sorted together")->capture_default_str();
  command->add_option("--open-packs", options.open_packs, "local-greedy: rows left open between windows, at most")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "local-greedy: order of rows sealed together")->capture_default_str();
  command->add_option("--out", arguments->out, "write the plan to this file (JSON, docs/plan_format.md)");
  command->add_flag("--compare", arguments->compare, "run every method and show them side by side");
  command->add_flag("--json", arguments->json, "print the statistics as JSON");
  command->callback([arguments, cut] {
    // In the library 0 stands for the pack length; on the command line it can only be a mistake.
    if (cut->count() > 0 && arguments->options.cut < 1) {
      throw std::invalid_argument(fmt::format("--cut must be at least 1 token, found {}", arguments->options.cut));
    }
    if (arguments->seed < 0) {
      throw std::invalid_argument(fmt::format("--seed must not be negative, found {}", arguments->seed));
    }
    arguments->options.seed = static_cast<std::uint64_t>(arguments->seed);
    run_pack(*arguments);
  });
}

}  // namespace packjit
