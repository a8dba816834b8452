#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/lengths_file.hpp"
#include "cli/output_file.hpp"
#include "cli/plan_file.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "packing/cutting.hpp"
#include "packing/packing.hpp"
#include "packing/ranks.hpp"
#include "packing/statistics.hpp"
#include "packing/training_stream.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

struct PackArguments {
  std::string lengths;
  std::string method = "local-greedy";
  PackOptions options;
  std::int64_t seed = 0;  ///< signed, so that a negative one is seen
  std::optional<std::int64_t> epoch;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> rank;
  std::string division = "balanced";
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
          {"cut_slack", options.cut_slack},         {"min_piece", options.min_piece},
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

Json json_of(const RankBalance& balance, std::int64_t tokens) {
  return {{"ranks", balance.ranks},
          {"steps", balance.steps},
          {"fill_rate", static_cast<double>(tokens) / static_cast<double>(balance.slots)},
          {"tokens", {{"fewest", balance.fewest_tokens}, {"most", balance.most_tokens}}},
          {"calls_without_rows", balance.calls_without_rows},
          {"mean_token_spread", balance.mean_token_spread},
          {"mean_longest_spread", balance.mean_longest_spread}};
}

std::string text_of(const RankBalance& balance, std::int64_t tokens) {
  std::string text = fmt::format("Divided over {} ranks:\n", grouped(balance.ranks));
  text += line("steps", grouped(balance.steps),
               fmt::format("with the same number of rows on every rank; {} of all tokens in them are real",
                           percent(static_cast<double>(tokens) / static_cast<double>(balance.slots))));
  text += line("tokens of a rank", grouped(balance.fewest_tokens),
               fmt::format("to {} real ones in the epoch", grouped(balance.most_tokens)));
  text += line("of a step", percent(balance.mean_token_spread),
               "between the fullest and the emptiest rank on average, of a rank's tokens");
  text += line("longest sequence", percent(balance.mean_longest_spread),
               "between the ranks of a step on average, of the longest");
  if (balance.calls_without_rows > 0) {
    text += line("without rows", grouped(balance.calls_without_rows), "calls at the end: the rank has padding only");
  }
  return text;
}

struct Comparison {
  std::string table = fmt::format("\n  {:<14} {:>9} {:>8} {:>8} {:>12} {:>11} {:>11} {:>8}\n", "method", "fill rate",
                                  "rows", "calls", "padding", "mean drift", "worst", "seconds");
  Json json = Json::array();
};

Comparison compare_methods(const std::vector<Document>& documents, const PackOptions& options, std::int64_t ranks,
                           RankDivision division) {
  Comparison comparison;
  for (const PackMethod& method : pack_methods()) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<PackPlan> plans = plan_ranks(method, documents, options, ranks, division);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const PackPlan plan = joined(plans);
    const PackStatistics statistics = statistics_of(plan, documents);
    comparison.table += fmt::format("  {:<14} {:>9} {:>8} {:>8} {:>12} {:>11.1f} {:>11} {:>8.3f}\n", plan.method,
                                    percent(statistics.fill_rate), grouped(statistics.rows), grouped(statistics.calls),
                                    grouped(statistics.padding()), statistics.mean_order_drift,
                                    grouped(statistics.largest_order_drift), seconds.count());
    Json row = json_of(plan, statistics);
    if (ranks > 1) row["balance"] = json_of(balance_of(plans), statistics.tokens);
    row["seconds"] = seconds.count();
    comparison.json.push_back(std::move(row));
  }
  return comparison;
}

void check_ranks(const PackArguments& arguments) {
  if (arguments.epoch && *arguments.epoch < 0) {
    throw std::invalid_argument(fmt::format("--epoch must not be negative, found {}", *arguments.epoch));
  }
  if (arguments.rank && (*arguments.rank < 0 || *arguments.rank >= arguments.ranks)) {
    throw std::invalid_argument(fmt::format("--rank must be from 0 to {}, one less than --ranks, found {}",
                                            arguments.ranks - 1, *arguments.rank));
  }
  if (arguments.ranks > 1 && !arguments.rank && !arguments.out.empty()) {
    throw std::invalid_argument("--out with --ranks writes the plan of one rank: give --rank");
  }
}

/// A cut piece costs some microseconds, and nobody trains with documents in pieces as short: a slip of the keyboard is
/// answered at once, not in minutes.
void check_pieces(const std::vector<Document>& documents, const PackOptions& options) {
  constexpr std::int64_t kShortestCut = 128;  // tokens
  constexpr std::int64_t kMostShortPieces = 1'000'000;
  const PackOptions checked = checked_options(options);
  if (checked.cut >= kShortestCut) return;
  std::int64_t pieces = 0;
  for (const Document& document : documents) {
    if (document.length <= checked.cut) continue;
    pieces += document.length / checked.cut;
    if (pieces <= kMostShortPieces) continue;
    throw std::invalid_argument(fmt::format(
        "pack: documents cut at {} tokens would make more than {} pieces; raise {} to {} or more, or pack "
        "fewer documents",
        checked.cut, grouped(kMostShortPieces), options.cut == 0 ? "--pack-length" : "--cut", kShortestCut));
  }
}

void run_pack(const PackArguments& arguments) {
  const PackMethod& method = pack_method_named(arguments.method);
  const RankDivision division = rank_division_named(arguments.division);
  check_ranks(arguments);
  refuse_same_file("--lengths", arguments.lengths, "--out", arguments.out);
  std::vector<Document> documents = read_lengths_file(arguments.lengths);
  PackOptions options = arguments.options;
  check_pieces(documents, options);
  std::vector<std::int64_t> order;
  if (arguments.epoch) {
    (void)begin_plan(method.name, documents, options);  // names a document by its place in the file
    order = arrival_order(static_cast<std::int64_t>(documents.size()), options.seed, *arguments.epoch);
    documents = in_order(documents, order);
    options = options_of_epoch(options, *arguments.epoch);
  }
  std::vector<PackPlan> plans = plan_ranks(method, documents, options, arguments.ranks, division);
  for (PackPlan& plan : plans) plan.options.seed = arguments.options.seed;
  const PackPlan whole = joined(plans);
  const PackStatistics statistics = statistics_of(whole, documents);
  const RankBalance balance = balance_of(plans);

  Comparison comparison;
  if (arguments.compare) comparison = compare_methods(documents, options, arguments.ranks, division);
  if (!arguments.out.empty()) {
    PackPlan& mine = plans[static_cast<std::size_t>(arguments.rank.value_or(0))];
    if (arguments.epoch) rename_documents(mine, order);
    write_output_file(arguments.out, plan_json(mine, {arguments.epoch, arguments.ranks, arguments.rank.value_or(0)}));
  }
  if (arguments.json) {
    Json report = json_of_input(whole, statistics);
    report["rows_per_call"] = options.rows_per_call;
    if (arguments.epoch) report["epoch"] = *arguments.epoch;
    report.update(json_of(whole, statistics));
    if (arguments.ranks > 1) {
      report["balance"] = json_of(balance, statistics.tokens);
      report["balance"]["division"] = arguments.division;
    }
    if (arguments.compare) report["methods"] = comparison.json;
    print_result(dump_text(report, 2) + "\n");
    return;
  }
  std::string text = text_of_input(whole, statistics) + text_of(whole, statistics);
  if (arguments.ranks > 1) text += text_of(balance, statistics.tokens);
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
      ->type_name("FILE")
      ->required();
  command->add_option("--pack-length", options.pack_length, "tokens of a row")->required();
  command->add_option("--method", arguments->method, method_help())->capture_default_str();
  const CLI::Option* cut = command->add_option(
      "--cut", options.cut, "cut documents longer than this, at breaks where there are any (default: the pack length)");
  command->add_option(
      "--cut-slack", options.cut_slack,
      "cut at a break only where it lies within the last so many tokens before the limit, otherwise at the "
      "limit (default: at any break)");
  command
      ->add_option("--min-piece", options.min_piece,
                   "tokens of a piece of a cut document, at least: a shorter rest makes the cut before it earlier")
      ->capture_default_str();
  command
      ->add_option("--rows-per-call", options.rows_per_call,
                   "rows that run side by side in one call; the pieces of a cut document go to different calls")
      ->capture_default_str();
  command
      ->add_option("--window", options.window,
                   "local-greedy: documents sorted together; with --ranks also dealt out together, for each rank")
      ->capture_default_str();
  command->add_option("--open-packs", options.open_packs, "local-greedy: rows left open between windows, at most")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "order of rows sealed together, and of documents with --epoch")
      ->capture_default_str();
  command->add_option("--epoch", arguments->epoch,
                      "documents arrive in the order of this epoch, drawn from the seed, instead of the file's");
  command->add_option("--ranks", arguments->ranks, "divide the documents over so many ranks, each with its own calls")
      ->capture_default_str();
  command
      ->add_option(
          "--division", arguments->division,
          "how ranks get documents: balanced (alike in tokens and longest sequences) or round-robin (in turn, to "
          "see what balancing gains)")
      ->capture_default_str();
  command->add_option("--rank", arguments->rank, "the rank whose plan --out writes, from 0");
  command->add_option("--out", arguments->out, "write the plan to this file (JSON, docs/plan_format.md)")
      ->type_name("FILE");
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
