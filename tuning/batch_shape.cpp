#include "tuning/batch_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <stdexcept>

namespace packjit {
namespace {

constexpr std::int64_t kDefaultTokens = 32768;
constexpr std::int64_t kTinyLength = 16;

std::vector<std::int64_t> equal_lengths(std::int64_t tokens, std::int64_t length) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(tokens / length), length);
  if (tokens % length > 0) lengths.push_back(tokens % length);
  return lengths;
}

BatchShape one_row(std::string_view name, std::int64_t tokens, std::vector<std::int64_t> lengths) {
  return {std::string(name), tokens, {std::move(lengths)}};
}

BatchShape full_rows(std::int64_t tokens, std::int64_t rows) {
  if (tokens % rows != 0) {
    throw std::invalid_argument(fmt::format(
        "the batch to measure: --tokens {} cannot be shared equally by --rows {}; choose a multiple of the rows",
        tokens, rows));
  }
  return {"rows", tokens / rows,
          std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(rows), {tokens / rows})};
}

struct ShapeRule {
  std::string_view name, meaning;
  bool takes_length, takes_rows;
  BatchShape (*make)(std::int64_t tokens, const ShapeOptions& options);
};
constexpr ShapeRule kShapes[] = {
    {"packed", "log-normal lengths, 57 to 2048, in one row", false, false,
     [](std::int64_t tokens, const ShapeOptions& options) {
       return one_row("packed", tokens, lognormal_lengths(tokens, options.seed));
     }},
    {"one-sequence", "one sequence, uncut", false, false,
     [](std::int64_t tokens, const ShapeOptions&) { return one_row("one-sequence", tokens, {tokens}); }},
    {"tiny", "sequences of 16 tokens in one row", false, false,
     [](std::int64_t tokens, const ShapeOptions&) {
       return one_row("tiny", tokens, equal_lengths(tokens, kTinyLength));
     }},
    {"equal", "sequences of --length tokens in one row", true, false,
     [](std::int64_t tokens, const ShapeOptions& options) {
       return one_row("equal", tokens, equal_lengths(tokens, *options.length));
     }},
    {"rows", "--rows full rows, each one sequence", false, true,
     [](std::int64_t tokens, const ShapeOptions& options) { return full_rows(tokens, *options.rows); }},
};

void require_positive(std::string_view option, const std::optional<std::int64_t>& value) {
  if (value && (*value < 1 || *value > kMaximumLength)) {
    throw std::invalid_argument(
        fmt::format("the batch to measure: {} must be 1 to {}, found {}", option, kMaximumLength, *value));
  }
}

/// `needed` and `given` must agree: an option that would have no effect is a mistake of the caller.
void require_match(std::string_view option, bool needed, bool given, std::string_view what) {
  if (needed == given) return;
  throw std::invalid_argument(needed ? fmt::format("the batch to measure: {} needs {}", what, option)
                                     : fmt::format("the batch to measure: {} has no meaning with {}", option, what));
}

BatchShape packed_documents(const ShapeOptions& options, std::span<const Document> documents) {
  constexpr std::string_view kWhat = "--lengths";
  if (options.shape)
    throw std::invalid_argument("the batch to measure: --lengths and --shape both say which lengths; give one");
  require_match("--tokens", false, options.tokens.has_value(), kWhat);
  require_match("--length", false, options.length.has_value(), kWhat);
  require_match("--rows", true, options.rows.has_value(), kWhat);
  require_match("--pack-length", true, options.pack_length.has_value(), kWhat);
  PackOptions pack;
  pack.pack_length = *options.pack_length;
  pack.rows_per_call = *options.rows;
  pack.seed = options.seed;
  const PackPlan plan = pack_method_named(options.method.value_or("local-greedy")).plan(documents, pack);
  const auto rows = static_cast<std::size_t>(*options.rows);
  const auto full =
      std::find_if(plan.calls.begin(), plan.calls.end(), [&](const Call& call) { return call.rows.size() == rows; });
  if (full == plan.calls.end()) {
    throw std::invalid_argument(
        fmt::format("the batch to measure: the {} lengths, {} tokens, do not fill {} rows of {} side by side; give "
                    "more lengths, or "
                    "lower --rows or --pack-length",
                    plan.documents, plan.tokens, rows, pack.pack_length));
  }
  BatchShape shape{"lengths", pack.pack_length, {}};
  for (const Row& row : full->rows) {
    shape.rows.emplace_back();
    for (const Piece& piece : row.pieces) shape.rows.back().push_back(piece.length);
  }
  return shape;
}

}  // namespace

std::int64_t BatchShape::real_tokens() const {
  std::int64_t sum = 0;
  for (const SequencePlace& place : sequences_of(*this)) sum += place.length;
  return sum;
}

std::int64_t BatchShape::sequences() const { return static_cast<std::int64_t>(sequences_of(*this).size()); }

std::int64_t BatchShape::longest() const {
  std::int64_t longest = 0;
  for (const SequencePlace& place : sequences_of(*this)) longest = std::max(longest, place.length);
  return longest;
}

std::string batch_shape_help() {
  std::string text;
  for (const ShapeRule& rule : kShapes) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : "; ", rule.name, rule.meaning);
  }
  return text;
}

BatchShape batch_shape(const ShapeOptions& options, std::span<const Document> documents) {
  require_positive("--tokens", options.tokens);
  require_positive("--length", options.length);
  require_positive("--rows", options.rows);
  require_positive("--pack-length", options.pack_length);
  if (options.lengths_file) return packed_documents(options, documents);

  const std::string name = options.shape.value_or("packed");
  const auto* rule =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const auto& r) { return r.name == name; });
  if (rule == std::end(kShapes)) {
    throw std::invalid_argument(
        fmt::format("the batch to measure: there is no shape '{}'; there are {}", name, batch_shape_help()));
  }
  const std::string what = "--shape " + name;
  require_match("--length", rule->takes_length, options.length.has_value(), what);
  require_match("--rows", rule->takes_rows, options.rows.has_value(), what);
  require_match("--pack-length", false, options.pack_length.has_value(), what);
  require_match("--method", false, options.method.has_value(), what);
  const std::int64_t tokens = options.tokens.value_or(kDefaultTokens);
  if (options.length && *options.length > tokens) {
    throw std::invalid_argument(
        fmt::format("the batch to measure: --length {} is more than --tokens {}", *options.length, tokens));
  }
  return rule->make(tokens, options);
}

std::vector<std::int64_t> lognormal_lengths(std::int64_t tokens, std::uint64_t seed) {
  constexpr double kLogMean = 6.2, kLogDeviation = 0.75, kShortest = 57, kLongest = 2048;
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0;) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
    const double length = std::clamp(std::exp(kLogMean + kLogDeviation * normal), kShortest, kLongest);
    lengths.push_back(std::min<std::int64_t>(left, std::llround(length)));
    left -= lengths.back();
  }
  return lengths;
}

Boundaries boundaries_of(const BatchShape& shape) {
  const std::vector<std::int64_t> full_row = {shape.seqlen};
  if (std::all_of(shape.rows.begin(), shape.rows.end(), [&](const auto& row) { return row == full_row; })) {
    return {Boundaries::Form::rows, {}};
  }
  Boundaries boundaries{Boundaries::Form::position_indices, {}};
  boundaries.values.assign(static_cast<std::size_t>(shape.tokens()), -1);
  for (const SequencePlace& place : sequences_of(shape)) {
    const auto first = static_cast<std::size_t>(place.row * shape.seqlen + place.start);
    for (std::int64_t i = 0; i < place.length; ++i) boundaries.values[first + static_cast<std::size_t>(i)] = i;
  }
  return boundaries;
}

std::vector<SequencePlace> sequences_of(const BatchShape& shape) {
  std::vector<SequencePlace> places;
  for (std::size_t row = 0; row < shape.rows.size(); ++row) {
    std::int64_t start = 0;
    for (const std::int64_t length : shape.rows[row]) {
      places.push_back({static_cast<std::int64_t>(row), start, length});
      start += length;
    }
  }
  return places;
}

BatchShape padded_shape(const BatchShape& shape) {
  const std::int64_t longest = shape.longest();
  return {"padded", longest,
          std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(shape.sequences()), {longest})};
}

}  // namespace packjit
