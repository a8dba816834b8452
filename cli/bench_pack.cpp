#include "cli/bench_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/date.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "packing/packing.hpp"
#include "packing/random.hpp"
#include "packing/statistics.hpp"

namespace packjit {
namespace {

struct PackBenchOptions {
  std::vector<std::int64_t> documents = {10000, 100000, 1000000, 10000000};
  std::vector<std::string> methods;
  PackOptions pack;
  std::int64_t seed = 1;
  int repeats = 3;
  bool json = false;
};

// Of the lengths: log-normal, as those of texts are.
constexpr double kMedianLength = 400;
constexpr double kSpread = 1;
constexpr std::int64_t kLongestLength = 20000;

std::vector<Document> drawn_documents(std::int64_t count, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<Document> documents(static_cast<std::size_t>(count));
  for (Document& document : documents) {
    double normal = -6;  // the sum of twelve uniform numbers less six has variance 1
    for (int i = 0; i < 12; ++i) normal += static_cast<double>(random.next() >> 11) * 0x1p-53;
    const double length = kMedianLength * std::exp(kSpread * normal);
    document.length = std::clamp<std::int64_t>(std::llround(length), 1, kLongestLength);
  }
  return documents;
}

struct Measured {
  std::string method;
  std::int64_t documents = 0;
  double seconds = 0;  ///< the shortest of the repeats
  double fill_rate = 0;
  /// seconds / (documents * log2(documents)): stays as it is where time grows as sorting does.
  [[nodiscard]] double nanoseconds_per_comparison() const {
    const auto count = static_cast<double>(documents);
    return 1e9 * seconds / (count * std::log2(count));
  }
};

Measured measure_method(const PackMethod& method, const std::vector<Document>& documents,
                        const PackBenchOptions& options) {
  Measured measured{std::string(method.name), static_cast<std::int64_t>(documents.size())};
  for (int i = 0; i < options.repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const PackPlan plan = method.plan(documents, options.pack);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    measured.seconds = i == 0 ? seconds.count() : std::min(measured.seconds, seconds.count());
    if (i == 0) measured.fill_rate = statistics_of(plan, documents).fill_rate;
  }
  return measured;
}

std::vector<const PackMethod*> chosen_methods(const std::vector<std::string>& names) {
  std::vector<const PackMethod*> methods;
  methods.reserve(names.size());
  for (const std::string& name : names) methods.push_back(&pack_method_named(name));
  if (names.empty()) {
    for (const PackMethod& method : pack_methods()) methods.push_back(&method);
  }
  return methods;
}

void bench_pack(const PackBenchOptions& options, const std::string& command) {
  if (options.repeats < 1 || options.seed < 0) {
    throw std::invalid_argument(fmt::format("bench pack: --repeats {} must be at least 1 and --seed {} at least 0",
                                            options.repeats, options.seed));
  }
  constexpr std::int64_t kMostDocuments = 100'000'000;
  for (const std::int64_t count : options.documents) {
    if (count < 2 || count > kMostDocuments) {
      throw std::invalid_argument(
          fmt::format("bench pack: --documents must be from 2 to {}, found {}", kMostDocuments, count));
    }
  }
  const auto methods = chosen_methods(options.methods);
  std::vector<Measured> rows;
  Progress progress("packing", static_cast<std::int64_t>(methods.size() * options.documents.size()));
  for (const std::int64_t count : options.documents) {
    const std::vector<Document> documents = drawn_documents(count, static_cast<std::uint64_t>(options.seed));
    for (const PackMethod* method : methods) {
      progress.set_label(fmt::format("{} of {} documents", method->name, count));
      rows.push_back(measure_method(*method, documents, options));
      progress.advance();
    }
  }
  const unsigned cores = std::thread::hardware_concurrency();
  if (options.json) {
    nlohmann::ordered_json report = {
        {"date", today()},
        {"command", command},
        {"machine", fmt::format("{} CPU cores, one of them used", cores)},
        {"lengths", fmt::format("log-normal, median {}, sigma {}, at most {}", kMedianLength, kSpread, kLongestLength)},
        {"pack_length", options.pack.pack_length},
        {"rows_per_call", options.pack.rows_per_call},
        {"repeats", options.repeats},
        {"measured", nlohmann::ordered_json::array()}};
    for (const Measured& row : rows) {
      report["measured"].push_back({{"method", row.method},
                                    {"documents", row.documents},
                                    {"seconds", row.seconds},
                                    {"ns_per_document_and_log2", row.nanoseconds_per_comparison()},
                                    {"fill_rate", row.fill_rate}});
    }
    print_result(dump_text(report, 2) + "\n");
    return;
  }
  std::string table = fmt::format("Rows of {} tokens, {} CPU cores, one of them used, the shortest of {} times\n\n",
                                  options.pack.pack_length, cores, options.repeats);
  table += fmt::format("{:<14} {:>11} {:>10} {:>16} {:>10}\n", "method", "documents", "seconds", "ns / (n log2 n)",
                       "fill rate");
  for (const Measured& row : rows) {
    table += fmt::format("{:<14} {:>11} {:>10.4f} {:>16.2f} {:>8.2f} %\n", row.method, row.documents, row.seconds,
                         row.nanoseconds_per_comparison(), 100 * row.fill_rate);
  }
  print_result(table);
}

}  // namespace

void add_bench_pack(CLI::App& bench) {
  CLI::App* pack = bench.add_subcommand("pack", "the packing methods' times by number of documents, on the CPU");
  const auto options = std::make_shared<PackBenchOptions>();
  options->pack.pack_length = 4096;
  options->pack.rows_per_call = 8;
  pack->add_option("--documents", options->documents, "numbers of documents")->delimiter(',')->capture_default_str();
  pack->add_option("--method", options->methods, "methods of `packjit pack` (all)")->delimiter(',');
  pack->add_option("--pack-length", options->pack.pack_length, "tokens of a row")->capture_default_str();
  pack->add_option("--rows-per-call", options->pack.rows_per_call, "rows of a call")->capture_default_str();
  pack->add_option("--window", options->pack.window, "local-greedy: documents sorted together")->capture_default_str();
  pack->add_option("--repeats", options->repeats, "measurements, of which the shortest counts")->capture_default_str();
  pack->add_option("--seed", options->seed, "of the lengths")->capture_default_str();
  pack->add_flag("--json", options->json, "print JSON");
  pack->callback([options, pack] { bench_pack(*options, "packjit bench pack" + given_options(*pack, {})); });
}

}  // namespace packjit
