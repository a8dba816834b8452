#include "checking/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "database/printable.hpp"

namespace packjit::checking {

namespace {

bool compares_bits(CheckKind kind) { return kind >= CheckKind::isolation; }

/// How far a result is from its bound; above 1 fails. NaN counts as infinitely far.
double severity(const Result& result) {
  if (std::isnan(result.error)) return std::numeric_limits<double>::infinity();
  if (result.bound > 0) return result.error / result.bound;
  return result.error > 0 ? std::numeric_limits<double>::infinity() : 0;
}

bool less_severe(const Result* a, const Result* b) { return severity(*a) < severity(*b); }

struct Group {
  const Result* worst = nullptr;
  std::size_t count = 0, failed = 0;
  void add(const Result& result) {
    if (worst == nullptr || less_severe(worst, &result)) worst = &result;
    ++count;
    failed += result.pass() ? 0u : 1u;
  }
};

using TensorKey = std::tuple<Operator, Dtype, std::string>;
using BitKey = std::pair<CheckKind, Operator>;

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json row(const Result& worst, const Group& group) {
  return {{"error", number_or_null(worst.error)},
          {"bound", worst.bound},
          {"case", worst.case_name},
          {"where", worst.where},
          {"check", name_of(worst.check)},
          {"comparisons", group.count},
          {"failed", group.failed},
          {"pass", group.failed == 0}};
}

}  // namespace

std::string_view name_of(CheckKind kind) {
  switch (kind) {
    case CheckKind::oracle:
      return "oracle";
    case CheckKind::second_config:
      return "second config";
    case CheckKind::stored_checkpoints:
      return "stored checkpoints";
    case CheckKind::padded:
      return "padded run";
    case CheckKind::cut:
      return "cut in two";
    case CheckKind::successive_calls:
      return "successive calls";
    case CheckKind::isolation:
      return "isolation";
    case CheckKind::repeat:
      return "repeat";
    case CheckKind::thread_order:
      return "thread order";
    case CheckKind::boundary_form:
      return "boundary form";
    case CheckKind::cut_bits:
      return "cut bits";
  }
  return "?";
}

void Report::add(std::vector<Result> results) {
  results_.insert(results_.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
}

bool Report::pass() const {
  return std::ranges::all_of(results_, [](const Result& result) { return result.pass(); });
}

const Result* Report::worst_failure() const {
  const Result* worst = nullptr;
  for (const Result& result : results_) {
    if (!result.pass() && (worst == nullptr || less_severe(worst, &result))) worst = &result;
  }
  return worst;
}

std::string Report::table() const {
  std::map<TensorKey, Group> tensors;
  std::map<BitKey, Group> bits;
  for (const Result& result : results_) {
    if (compares_bits(result.check)) {
      bits[{result.check, result.op}].add(result);
    } else {
      tensors[{result.op, result.dtype, result.tensor}].add(result);
    }
  }
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);
  if (!tensors.empty()) {
    fmt::format_to(out, "{:<16} {:<5} {:<16} {:>11} {:>9} {:>6}  {:<6} {}\n", "operator", "dtype", "tensor",
                   "worst error", "bound", "checks", "result", "worst in");
  }
  for (const auto& [key, group] : tensors) {
    const Result& worst = *group.worst;
    fmt::format_to(out, "{:<16} {:<5} {:<16} {:>11.2e} {:>9.1e} {:>6}  {:<6} {}: {}, {}\n", name_of(std::get<0>(key)),
                   name_of(std::get<1>(key)), std::get<2>(key), worst.error, worst.bound, group.count,
                   group.failed == 0 ? "ok" : "FAILED", printable(worst.case_name), name_of(worst.check), worst.where);
  }
  if (!bits.empty()) {
    fmt::format_to(out, "\n{:<16} {:<16} {:>9} {:>9}  {}\n", "bit for bit", "operator", "tensors", "different",
                   "result");
  }
  for (const auto& [key, group] : bits) {
    fmt::format_to(out, "{:<16} {:<16} {:>9} {:>9}  {}\n", name_of(key.first), name_of(key.second), group.count,
                   group.failed,
                   group.failed == 0 ? "ok"
                                     : fmt::format("FAILED, worst: {} in {}, {}", group.worst->tensor,
                                                   printable(group.worst->case_name), group.worst->where));
  }
  return fmt::to_string(text);
}

nlohmann::json Report::json() const {
  std::map<TensorKey, Group> tensors;
  std::map<BitKey, Group> bits;
  for (const Result& result : results_) {
    if (compares_bits(result.check)) {
      bits[{result.check, result.op}].add(result);
    } else {
      tensors[{result.op, result.dtype, result.tensor}].add(result);
    }
  }
  nlohmann::json document = {{"pass", pass()}, {"tensors", nlohmann::json::array()}, {"bits", nlohmann::json::array()}};
  for (const auto& [key, group] : tensors) {
    nlohmann::json entry = row(*group.worst, group);
    entry["operator"] = name_of(std::get<0>(key));
    entry["dtype"] = name_of(std::get<1>(key));
    entry["tensor"] = std::get<2>(key);
    document["tensors"].push_back(std::move(entry));
  }
  for (const auto& [key, group] : bits) {
    nlohmann::json entry = row(*group.worst, group);
    entry["operator"] = name_of(key.second);
    entry["tensor"] = group.worst->tensor;
    document["bits"].push_back(std::move(entry));
  }
  return document;
}

std::string describe(const Result& result) {
  const std::string head = fmt::format("{} {} {}", name_of(result.op), name_of(result.dtype), result.tensor);
  const std::string tail =
      fmt::format("({}, case \"{}\", {})", name_of(result.check), printable(result.case_name), result.where);
  if (compares_bits(result.check))
    return fmt::format("{}: {} {} differ, expected none {}", head, result.error,
                       result.check == CheckKind::cut_bits ? "pieces" : "elements", tail);
  return fmt::format("{}: relative error {:.3e} against a bound of {:.1e} {}", head, result.error, result.bound, tail);
}

}  // namespace packjit::checking
