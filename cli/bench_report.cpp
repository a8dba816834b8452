#include "cli/bench_report.hpp"
#include "database/record_json.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace packjit {
namespace {

double per_element(std::int64_t bytes, const BenchRow& row) {
  return static_cast<double>(bytes) / (static_cast<double>(row.computed_tokens) * static_cast<double>(row.dim));
}

/// Of real tokens, so that ways which compute padding compare with those that do not.
double giga_elements_per_second(const BenchRow& row) {
  return static_cast<double>(row.real_tokens) * static_cast<double>(row.dim) / row.times.median_ms * 1e-6;
}

double share_of_limit(const BenchRow& row) { return row.limits.largest_ms() / row.times.median_ms; }

std::string full_name(const std::string& name, const std::string& variant) {
  return variant.empty() ? name : name + " " + variant;
}

std::string column_names() {
  return fmt::format("{:<27} {:<10} {:>9} {:>18} {:>8} {:>8} {:<6} {:>5} {:>9}\n", "operator", "way", "median ms",
                     "10 % to 90 %", "G elem/s", "limit ms", "by", "share", "clock MHz");
}

std::string start_of_line(const std::string& name, const std::string& way) {
  return fmt::format("{:<27} {:<10} ", name, way);
}

std::string line_of(const BenchRow& row) {
  const std::string start = start_of_line(full_name(row.name, row.variant), row.way);
  if (!row.skipped.empty()) return start + "skipped: " + row.skipped + "\n";
  const std::string_view by = row.limits.largest() == "exponentials" ? "exp" : row.limits.largest();
  return start + fmt::format("{:>9.4f} {:>8.4f} {:>9.4f} {:>8.1f} {:>8.4f} {:<6} {:>3.0f} % {:>4.0f}-{:<4.0f}\n",
                             row.times.median_ms, row.times.low_ms, row.times.high_ms, giga_elements_per_second(row),
                             row.limits.largest_ms(), by, 100 * share_of_limit(row), row.times.lowest_mhz,
                             row.times.highest_mhz);
}

std::string line_of(const PeerRow& row) {
  const std::string start = start_of_line(row.name + " official", row.way);
  if (!row.skipped.empty()) return start + "skipped: " + row.skipped + "\n";
  return start + fmt::format("{:>9.4f} {:>8.4f} {:>9.4f} {:>8.1f}\n", row.median_ms, row.p10_ms, row.p90_ms,
                             row.giga_elements_per_second);
}

/// What the table's numbers of padded rows count.
std::string padding_note(std::span<const BenchRow> rows) {
  for (const BenchRow& row : rows) {
    if (row.way != "padded" || !row.skipped.empty()) continue;
    return fmt::format("padded computes all {} tokens, {} of them real; G elem/s count the real ones\n",
                       row.computed_tokens, row.real_tokens);
  }
  return "";
}

std::string memory_table(std::span<const BenchRow> rows) {
  std::string lines;
  for (const BenchRow& row : rows) {
    if (!row.saved_bytes || !row.skipped.empty()) continue;
    lines += start_of_line(full_name(row.name, row.variant), row.way) +
             fmt::format("{:>15} {:>9.2f} {:>15} {:>9.2f}\n", row.workspace_bytes,
                         per_element(row.workspace_bytes, row), *row.saved_bytes, per_element(*row.saved_bytes, row));
  }
  if (lines.empty()) return "";
  return fmt::format("\n{:<27} {:<10} {:>15} {:>9} {:>15} {:>9}\n", "memory of the backward", "", "workspace bytes",
                     "an elem.", "saved bytes", "an elem.") +
         lines;
}

}  // namespace

nlohmann::json json_of(const BenchHeader& header) {
  const BatchShape& shape = header.shape;
  return {{"date", header.date},
          {"command", header.command},
          {"gpu", header.gpu.name},
          {"arch", header.gpu.arch},
          {"multiprocessors", header.gpu.multiprocessors},
          {"clock_limit_mhz", header.gpu.clock_mhz},
          {"l2_bytes", header.gpu.l2_bytes},
          {"nvrtc", header.nvrtc},
          {"copy_bytes_per_second", header.bytes_per_second},
          {"shape", shape.name},
          {"tokens", shape.tokens()},
          {"real_tokens", shape.real_tokens()},
          {"batch", shape.batch()},
          {"seqlen", shape.seqlen},
          {"sequences", shape.sequences()},
          {"longest", shape.longest()},
          {"lengths", shape.rows},
          {"dim", header.choices.dim},
          {"d_state", header.choices.d_state},
          {"conv_width", header.choices.conv_width},
          {"dtype", header.choices.dtype},
          {"repeats", header.repeats},
          {"cache", name_of(header.cache)},
          {"cache_state", describe(header.cache, header.gpu.l2_bytes)}};
}

std::string text_of(const BenchHeader& header) {
  const BatchShape& shape = header.shape;
  return fmt::format(
      "{}, copy {:.2f} TB/s; shape {}: {} sequences, {} tokens in {} x {}, longest {}\n"
      "dim {}, d_state {}, conv_width {}, {}; medians of {}\n"
      "cache {}\n\n",
      header.gpu.name, header.bytes_per_second * 1e-12, shape.name, shape.sequences(), shape.real_tokens(),
      shape.batch(), shape.seqlen, shape.longest(), header.choices.dim, header.choices.d_state,
      header.choices.conv_width, header.choices.dtype, header.repeats, describe(header.cache, header.gpu.l2_bytes));
}

nlohmann::json json_of(const BenchRow& row) {
  nlohmann::json json = {{"operator", row.name}, {"way", row.way}};
  if (!row.variant.empty()) json["checkpoints"] = row.variant;
  if (!row.skipped.empty()) {
    json["skipped"] = row.skipped;
    return json;
  }
  json.update({{"median_ms", row.times.median_ms},
               {"p10_ms", row.times.low_ms},
               {"p90_ms", row.times.high_ms},
               {"calls_per_repeat", row.times.calls_per_repeat},
               {"launched_calls", row.launched_calls},
               {"buffer_sets", row.buffer_sets},
               {"clock_mhz", {{"lowest", row.times.lowest_mhz}, {"highest", row.times.highest_mhz}}},
               {"computed_tokens", row.computed_tokens},
               {"giga_elements_per_second", giga_elements_per_second(row)},
               {"bytes", static_cast<std::int64_t>(row.work.bytes)},
               {"memory_limit_ms", row.limits.memory_ms},
               {"share_of_memory_limit", row.limits.memory_ms / row.times.median_ms},
               {"exponential_limit_ms", row.limits.exponential_ms},
               {"issue_limit_ms", row.limits.issue_ms},
               {"limit_ms", row.limits.largest_ms()},
               {"limited_by", row.limits.largest()},
               {"share_of_limit", share_of_limit(row)},
               {"workspace_bytes", row.workspace_bytes},
               {"workspace_bytes_per_element", per_element(row.workspace_bytes, row)},
               {"config", row.config}});
  if (row.saved_bytes) {
    json["saved_bytes"] = *row.saved_bytes;
    json["saved_bytes_per_element"] = per_element(*row.saved_bytes, row);
  }
  return json;
}

std::vector<PeerRow> peer_rows(const nlohmann::json& report) {
  try {
    std::vector<PeerRow> rows;
    for (const nlohmann::json& entry : report.at("rows")) {
      PeerRow row{entry.at("operator"), entry.at("peer"), entry.at("way"), entry.value("skipped", ""), 0, 0, 0, 0};
      if (row.skipped.empty()) {
        row.median_ms = entry.at("median_ms");
        row.p10_ms = entry.at("p10_ms");
        row.p90_ms = entry.at("p90_ms");
        row.giga_elements_per_second = entry.at("giga_elements_per_second");
      }
      rows.push_back(std::move(row));
    }
    return rows;
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(fmt::format("the report of the peers' script is not as expected: {}", reason_of(error)));
  }
}

std::string bench_table(std::span<const BenchRow> rows, std::span<const PeerRow> peers) {
  std::string table = column_names();
  for (const BenchRow& row : rows) table += line_of(row);
  for (const PeerRow& row : peers) table += line_of(row);
  return table + padding_note(rows) + memory_table(rows);
}

}  // namespace packjit
