// packjit bench ops: the four operators on one GPU, on lengths of the caller's choice, each time beside its limits.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/bench_host.hpp"
#include "cli/bench_map.hpp"
#include "cli/bench_pack.hpp"
#include "cli/bench_peers.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_rows.hpp"
#include "cli/commands.hpp"
#include "cli/date.hpp"
#include "cli/lengths_file.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/builtin_config.hpp"
#include "database/record_json.hpp"
#include "runtime/nvrtc.hpp"
#include "tuning/batch_shape.hpp"

namespace packjit {
namespace {

struct Options {
  ShapeOptions shape;
  std::string lengths;
  OperatorChoices choices;
  int repeats = 30;
  std::string cache = "rotating";
  bool compare = false;
  bool together = false;
  std::string peers;
  std::vector<std::string> only;
  std::vector<std::string> set;
  bool json = false;
};

/// A row and the list of the report that holds it. `operators` has one row an operator, packed and with the default of
/// every choice, which is what other programs read.
struct ListedRow {
  const char* list;
  BenchRow row;
};

void check_options(const Options& options) {
  if (options.choices.dim < 1 || options.repeats < 1) {
    throw std::invalid_argument(fmt::format("bench ops: --dim {} and --repeats {} must both be at least 1",
                                            options.choices.dim, options.repeats));
  }
  for (const Operator op : kOperators) {
    (void)builtin_config(spec_for(op, options.choices), "sm_90");  // says which size or dtype is out of range
  }
  for (const Operator op : chosen_operators(options.only)) {
    (void)with_settings(builtin_config(spec_for(op, options.choices), "sm_90"), options.set);
  }
}

std::vector<ListedRow> measure_all(const Bench& bench, const Options& options) {
  std::vector<ListedRow> rows;
  const std::vector<Operator> chosen = chosen_operators(options.only);
  Progress progress("measuring", static_cast<std::int64_t>(chosen.size()));
  for (const Operator op : chosen) {
    progress.set_label(std::string(name_of(op)));
    const std::vector<Variant> variants = variants_of(spec_for(op, bench.choices));
    for (const Variant& variant : variants) {
      rows.push_back({&variant == &variants.front() ? "operators" : "variants", packed_row(bench, op, variant)});
    }
    if (options.compare) {
      rows.push_back({"compared", padded_row(bench, op, variants.front())});
      rows.push_back({"compared", one_by_one_row(bench, op, variants.front())});
    }
    progress.advance();
  }
  if (!options.together) return rows;
  progress.set_label("forward and backward");
  const std::vector<Variant> forward = variants_of(spec_for(Operator::ssm_pack_fwd, bench.choices));
  const std::vector<Variant> backward = variants_of(spec_for(Operator::ssm_pack_bwd, bench.choices));
  for (std::size_t i = 0; i < forward.size(); ++i) {
    rows.push_back({"together", together_row(bench, forward[i], backward[i])});
  }
  return rows;
}

void bench_ops(Options options, const std::string& command) {
  check_options(options);
  const CacheState cache = cache_state_named(options.cache);
  std::vector<Document> documents;
  options.shape.lengths_file = !options.lengths.empty();
  if (options.shape.lengths_file) documents = read_lengths_file(options.lengths);
  const BatchShape shape = batch_shape(options.shape, documents);

  const auto device = CudaDevice::open();
  BenchHeader header;
  header.date = today();
  header.command = command;
  header.nvrtc = Nvrtc::shared()->version_text();
  header.gpu = device->info();
  header.shape = shape;
  header.choices = options.choices;
  header.repeats = options.repeats;
  header.cache = cache;
  // First, so that a Python that lacks something is known before the rest is measured.
  nlohmann::json peers_report;
  if (!options.peers.empty()) peers_report = run_peers(options.peers, json_of(header));

  Instruments instruments(*device, cache, options.repeats);
  header.bytes_per_second = copy_bandwidth(instruments);
  const Bench bench{instruments, shape, options.choices, options.set, options.shape.seed, header.bytes_per_second};
  const std::vector<ListedRow> rows = measure_all(bench, options);

  if (options.json) {
    nlohmann::json report = json_of(header);
    if (!options.peers.empty()) report["peers"] = peers_report;
    for (const ListedRow& row : rows) report[row.list].push_back(json_of(row.row));
    print_result(dump_text(report, 2) + "\n");
    return;
  }
  std::vector<BenchRow> all;
  all.reserve(rows.size());
  for (const ListedRow& row : rows) all.push_back(row.row);
  const std::vector<PeerRow> peers = options.peers.empty() ? std::vector<PeerRow>() : peer_rows(peers_report);
  print_result(text_of(header) + bench_table(all, peers));
}

}  // namespace

void register_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure operators, maps and packing");
  bench->require_subcommand(1);
  add_bench_map(*bench);
  add_bench_host(*bench);
  add_bench_pack(*bench);
  CLI::App* ops = bench->add_subcommand("ops", "the operators' times on lengths of your choice, beside their limits");
  const auto options = std::make_shared<Options>();
  ShapeOptions& shape = options->shape;
  OperatorChoices& choices = options->choices;
  ops->add_option("--shape", shape.shape, "lengths: " + batch_shape_help() + "; default packed");
  ops->add_option("--tokens", shape.tokens, "tokens of all rows together, 32768 by default");
  ops->add_option("--length", shape.length, "tokens of each sequence, for --shape equal");
  ops->add_option("--lengths", options->lengths,
                  "file of lengths as `packjit pack` takes it, in place of --shape: the first --rows full rows of "
                  "--pack-length tokens are measured as one batch")
      ->type_name("FILE");
  ops->add_option("--rows", shape.rows, "rows of the batch, for --shape rows and --lengths");
  ops->add_option("--pack-length", shape.pack_length, "tokens of a row, for --lengths");
  ops->add_option("--method", shape.method,
                  "how --lengths are packed: a method of `packjit pack`, local-greedy by default");
  ops->add_option("--dim", choices.dim, "channels")->capture_default_str();
  ops->add_option("--d-state", choices.d_state, "states of a channel")->capture_default_str();
  ops->add_option("--conv-width", choices.conv_width, "taps")->capture_default_str();
  ops->add_option("--dtype", choices.dtype, "fp32, fp16 or bf16")->capture_default_str();
  ops->add_option("--cache", options->cache,
                  "what the L2 holds when a call begins: rotating (buffers beyond twice its size, in turn), warm (the "
                  "same buffers) or cold (overwritten before each call)")
      ->capture_default_str();
  ops->add_flag("--compare", options->compare,
                "also the same lengths padded to the longest, and one launch a sequence");
  ops->add_flag("--together", options->together, "also the scan's forward and backward in one timed region");
  ops->add_option("--peers", options->peers,
                  "a Python with mamba_ssm and causal_conv1d: also the official kernels on the same lengths "
                  "(scripts/bench_peers.py)")
      ->type_name("PYTHON");
  ops->add_option("--repeats", options->repeats, "measurements, of which the median counts")->capture_default_str();
  ops->add_option("--seed", shape.seed, "of lengths and contents")->capture_default_str();
  ops->add_option("--only", options->only, "operators to measure (all)");
  ops->add_option("--set", options->set,
                  "Config field key=value, for every operator measured; ssm_pack_bwd.key=value for one");
  ops->add_flag("--json", options->json, "print JSON (docs/bench_ops.md)");
  ops->callback([options, ops] {
    bench_ops(*options, "packjit bench ops" + given_options(*ops, {"--lengths", "--peers"}));
  });
}

}  // namespace packjit
