#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "checking/case_file.hpp"
#include "checking/kernels.hpp"
#include "checking/matrix.hpp"
#include "cli/commands.hpp"
#include "cli/lengths_file.hpp"
#include "cli/terminal.hpp"
#include "cli/verify_cut.hpp"
#include "database/printable.hpp"
#include "database/record_json.hpp"
#include "packing/packing.hpp"
#include "runtime/device.hpp"
#include "runtime/errors.hpp"
#include "runtime/host/host_device.hpp"
#include "runtime/log.hpp"
#include "runtime/text_file.hpp"

namespace packjit {
namespace {

using checking::Case;
using checking::CheckKind;
using checking::PlannedCase;

struct VerifyOptions {
  std::string device = "auto";
  std::string case_file;
  std::string lengths_file;
  std::int64_t pack_length = 4096;
  std::int64_t rows = 2;
  std::int64_t dim = 4;
  std::int64_t cut = 0;  ///< tokens; 0: the longest document is not verified in pieces
  bool quick = false;
  bool json = false;
};

constexpr std::size_t kLongestCaseFile = std::size_t{1} << 24;  // bytes

std::string read_case_file(const std::string& path) {
  const auto fail = [&](std::string_view reason) {
    throw std::invalid_argument(
        fmt::format("cannot read the case '{}': {}; give a file as docs/case_format.md has it", path, reason));
  };
  return read_text_file(path, kLongestCaseFile, fmt::format("it is longer than {} bytes", kLongestCaseFile), fail);
}

/// Rows of the first call of a plan, as many as asked for, as rows of a case.
std::vector<checking::Row> packed_rows(const VerifyOptions& options) {
  const std::vector<Document> documents = read_lengths_file(options.lengths_file);
  PackOptions pack;
  pack.pack_length = options.pack_length;
  pack.rows_per_call = options.rows;
  const PackPlan plan = plan_next_fit(documents, pack);
  std::vector<checking::Row> rows;
  for (const Row& packed : plan.calls.front().rows) {
    checking::Row row;
    std::int64_t left = options.pack_length;
    for (const Piece& piece : packed.pieces) {
      row.push_back({piece.length, false});
      left -= piece.length;
    }
    if (left > 0) row.push_back({left, true});
    rows.push_back(std::move(row));
  }
  if (const auto found = static_cast<std::int64_t>(rows.size()); found < options.rows) {
    write_log({LogLevel::warning,
               fmt::format("--rows asks for {} rows of {} tokens, but the lengths in '{}' fill {}: no more are checked",
                           options.rows, options.pack_length, options.lengths_file, found),
               {}});
  }
  return rows;
}

std::vector<PlannedCase> lengths_matrix(const VerifyOptions& options) {
  std::vector<PlannedCase> matrix;
  const std::vector<checking::Row> rows = packed_rows(options);
  for (const Operator op : kOperators) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      Case c;
      c.name = fmt::format("{} rows of {}", rows.size(), options.pack_length);
      c.op = op;
      c.dtype = dtype;
      c.dim = options.dim;
      c.rows = rows;
      std::vector<CheckKind> checks = {CheckKind::oracle, CheckKind::padded, CheckKind::isolation};
      matrix.push_back({std::move(c), std::move(checks)});
    }
  }
  return matrix;
}

std::vector<PlannedCase> planned(const VerifyOptions& options, const Device& device) {
  if (!options.case_file.empty()) {
    const std::string text = read_case_file(options.case_file);
    try {
      return {{checking::parse_case(text), checking::all_checks()}};
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("{}: {}", options.case_file, error.what()));
    }
  }
  if (!options.lengths_file.empty()) return lengths_matrix(options);
  const checking::Coverage coverage = options.quick                  ? checking::Coverage::quick
                                      : device.info().kind == "host" ? checking::Coverage::reduced
                                                                     : checking::Coverage::full;
  return checking::default_matrix(device.info().arch, coverage);
}

/// Host devices whose thread orders differ from the default one; none for a GPU, whose order is not ours.
std::vector<std::unique_ptr<Device>> other_orders(const Device& device) {
  std::vector<std::unique_ptr<Device>> devices;
  if (device.info().kind != "host") return devices;
  devices.push_back(open_host_device({HostOrder::Kind::reverse, 0}));
  for (std::uint64_t seed = 1; seed <= 3; ++seed) devices.push_back(open_host_device({HostOrder::Kind::seeded, seed}));
  return devices;
}

/// Host execution compiles with a whole C++ compiler: several kernels at a time, a few at once so that progress shows.
void compile_beforehand(Device& device, const std::vector<PlannedCase>& matrix) {
  auto* host = dynamic_cast<host::HostDevice*>(&device);
  if (host == nullptr) return;
  const std::vector<checking::Kernel> kernels = checking::kernels_of(matrix, device.info().arch);
  Progress progress("compiling kernels", static_cast<std::int64_t>(kernels.size()));
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t first = 0; first < kernels.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, kernels.size() - first);
    host->prepare(std::span(kernels).subspan(first, count));
    progress.advance(static_cast<std::int64_t>(count));
  }
}

/// What was found, and the exit status that says so.
void conclude(const checking::Report& report, bool is_json) {
  if (const checking::Result* worst = report.worst_failure()) {
    throw CheckFailed(fmt::format("packjit verify: {}; the first thing to try is that case alone: {}",
                                  checking::describe(*worst), "packjit verify --case (docs/case_format.md)"));
  }
  if (!is_json) print_result("all within bounds\n");
}

nlohmann::json json_of(const checking::Report& report, const Device& device) {
  nlohmann::json document = report.json();
  document["device"] = {{"kind", device.info().kind}, {"name", device.info().name}, {"arch", device.info().arch}};
  return document;
}

void verify_pieces(const VerifyOptions& options, Device& device) {
  PackOptions pack;
  pack.pack_length = options.pack_length;
  pack.rows_per_call = options.rows;
  pack.cut = options.cut;
  const CutVerification verification = verify_cut(device, read_lengths_file(options.lengths_file), pack, options.dim);
  if (options.json) {
    nlohmann::json document = json_of(verification.report, device);
    document["cut"] = verification.document;
    print_result(dump_text(document, 2) + "\n");
  } else {
    print_result(fmt::format("On {} ({})\n\n{}\n{}\n", device.info().name, device.info().arch,
                             verification.report.table(), verification.text));
  }
  conclude(verification.report, options.json);
}

void verify(const VerifyOptions& options) {
  if (!options.case_file.empty() && !options.lengths_file.empty()) {
    throw std::invalid_argument("packjit verify: --case and --lengths cannot be given together; run it once with each");
  }
  const std::unique_ptr<Device> device = open_device(options.device);
  if (options.cut > 0) return verify_pieces(options, *device);
  const std::vector<PlannedCase> matrix = planned(options, *device);
  const std::vector<std::unique_ptr<Device>> others = other_orders(*device);
  std::vector<Device*> orders;
  std::ranges::transform(others, std::back_inserter(orders), [](const auto& other) { return other.get(); });

  compile_beforehand(*device, matrix);
  checking::Report report;
  {
    Progress progress("verify", static_cast<std::int64_t>(matrix.size()));
    for (const PlannedCase& plan : matrix) {
      progress.set_label(fmt::format("{} {} {}", name_of(plan.check_case.op), name_of(plan.check_case.dtype),
                                     printable(plan.check_case.name)));
      report.add(checking::run_plan(*device, orders, plan));
      progress.advance();
    }
  }
  if (options.json) {
    nlohmann::json document = json_of(report, *device);
    document["cases"] = matrix.size();
    print_result(dump_text(document, 2) + "\n");
  } else {
    print_result(fmt::format("{} cases on {} ({})\n\n{}\n", matrix.size(), device->info().name, device->info().arch,
                             report.table()));
  }
  conclude(report, options.json);
}

}  // namespace

void register_verify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "Checks every operator on a device against the fp64 oracle, padded runs, isolation and more");
  const auto options = std::make_shared<VerifyOptions>();
  command->add_option("--device", options->device, "auto, cuda or host")->capture_default_str();
  CLI::Option* one_case =
      command->add_option("--case", options->case_file, "check this one case (docs/case_format.md)")->type_name("FILE");
  CLI::Option* lengths =
      command->add_option("--lengths", options->lengths_file, "check rows packed from these document lengths")
          ->type_name("FILE");
  // A case says all of this itself, and the built-in cases have sizes of their own.
  const auto of_lengths = [=](CLI::Option* option) {
    option->needs(lengths);
    option->excludes(one_case);
    return option;
  };
  of_lengths(command->add_option("--pack-length", options->pack_length, "with --lengths: tokens of a row"))
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  of_lengths(command->add_option("--rows", options->rows, "with --lengths: rows to check"))
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  of_lengths(command->add_option("--dim", options->dim, "with --lengths: channels"))
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{16384}));
  of_lengths(command->add_option("--cut", options->cut,
                                 "with --lengths: the longest document in pieces of so many tokens, which hand states "
                                 "and gradients over from call to call, against the same document uncut"))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_flag("--quick", options->quick, "each operator and dtype once")->excludes(one_case)->excludes(lengths);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options] { verify(*options); });
}

}  // namespace packjit
