#include "tuning/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tuning/tuning_run.hpp"

namespace packjit {
namespace {

std::string bucket_text(const Entry& entry) {
  const Bucket& bucket = entry.bucket;
  std::string text = fmt::format("dim {}, {} tokens", bucket.dim, bucket.tokens);
  if (is_scan(entry.spec.op)) text += fmt::format(", spread {}, mean {}", bucket.spread, bucket.mean_length);
  return text;
}

/// The fields of a Spec that differ from the default one.
std::string spec_text(const Spec& spec) {
  const Spec usual(spec.op);
  std::string text;
  for (const Field& field : spec.values.table()) {
    if (spec.values[field.name] == usual.values[field.name]) continue;
    text += fmt::format(" {}={}", field.name, spec.values.text(field.name));
  }
  return text;
}

double percent(double share) { return 100 * share; }

constexpr int kWidth = 720, kHeight = 320, kLeft = 56, kRight = 16, kTop = 56, kBottom = 44;
constexpr const char* kPlain = "#7fb3e6";
constexpr const char* kBuiltIn = "#555";
constexpr const char* kWinner = "#c05621";

}  // namespace

std::string tuning_table(std::span<const Entry> entries, std::span<const FailedCandidate> failed) {
  std::string text =
      "| operator | shapes | best Config | ms | built-in ms | gain | spread | of the limit | tried | failed |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Entry& entry : entries) {
    const auto failures = std::ranges::count_if(
        failed, [&](const FailedCandidate& one) { return one.spec == entry.spec && one.measured == entry.measured; });
    const double spread = (entry.time.high_ms - entry.time.low_ms) / entry.time.median_ms;
    text += fmt::format("| {}{} | {} | {} | {:.4f} | {:.4f} | {:.1f} % | {:.1f} % | {:.0f} % | {} | {} |\n",
                        name_of(entry.spec.op), spec_text(entry.spec), bucket_text(entry), entry.config.values.text(),
                        entry.time.median_ms, entry.built_in.median_ms,
                        percent(1 - entry.time.median_ms / entry.built_in.median_ms), percent(spread),
                        percent(entry.limit_share), entry.tried, failures);
  }
  return text;
}

std::string tuning_picture(const TuningTarget& target, const TuningResult& result) {
  if (result.tried.empty()) {
    throw std::invalid_argument(
        fmt::format("drawing {}: no candidate was measured, so there are no times to draw", label_of(target)));
  }
  std::vector<const TriedCandidate*> order;
  for (const TriedCandidate& tried : result.tried) order.push_back(&tried);
  std::ranges::stable_sort(order, {}, &TriedCandidate::ratio);
  // Slow ones would press all others to the bottom: beyond that they are drawn at the edge.
  constexpr double kHighest = 3;
  const double top = std::clamp(order.back()->ratio, 1.2, kHighest);
  const auto y_of = [&](double ratio) { return kTop + (kHeight - kTop - kBottom) * (1 - std::min(ratio, top) / top); };
  const double step = static_cast<double>(kWidth - kLeft - kRight) / static_cast<double>(order.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-weight=\"bold\">{3}</text>\n",
      kWidth, kHeight, kLeft, label_of(target));
  svg += fmt::format(
      "<text x=\"{}\" y=\"42\">Time over that of the built-in Config, {} Configs, the fastest first. "
      "<tspan fill=\"{}\">Built-in</tspan>, <tspan fill=\"{}\">winner</tspan>.</text>\n",
      kLeft, order.size(), kBuiltIn, kWinner);
  for (double line = 0; line <= top; line += 0.5) {
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.1f}</text>\n",
        kLeft, kWidth - kRight, y_of(line), kLeft - 6, y_of(line) + 4, line);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const TriedCandidate& tried = *order[i];
    const bool won = result.entry && tried.config == result.entry->config;
    const bool is_built_in = tried.config == result.tried.front().config;  // it is measured first
    const double y = y_of(tried.ratio);
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}: {:.4f} ms, {:.3f}"
        "</title></rect>\n",
        kLeft + step * static_cast<double>(i), y, std::max(step - 0.5, 0.5), kHeight - kBottom - y,
        won           ? kWinner
        : is_built_in ? kBuiltIn
                      : kPlain,
        tried.config.values.text(), tried.median_ms, tried.ratio);
  }
  if (result.entry) {
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\">{:.4f} ms, built-in {:.4f} ms: {}</text>\n", kLeft, kHeight - 16,
                    result.entry->time.median_ms, result.entry->built_in.median_ms, result.entry->config.values.text());
  }
  return svg + "</svg>\n";
}

}  // namespace packjit
