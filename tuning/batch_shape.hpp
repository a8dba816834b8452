#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "packing/packing.hpp"
#include "runtime/sequence_map.hpp"

namespace packjit {

/// Which lengths to measure, as the command line has it; what was not given is empty.
struct ShapeOptions {
  std::optional<std::string> shape;         ///< a name of batch_shape_help()
  std::optional<std::int64_t> tokens;       ///< of all rows together
  std::optional<std::int64_t> length;       ///< equal: tokens of a sequence
  std::optional<std::int64_t> rows;         ///< rows, lengths from a file: how many
  std::optional<std::int64_t> pack_length;  ///< lengths from a file: tokens of a row
  std::optional<std::string> method;        ///< lengths from a file: how they are packed
  bool lengths_file = false;                ///< whether there is one
  std::uint64_t seed = 1;
};

/// One batch: rows of `seqlen` tokens, each with its sequences from left to right; the rest of a row is padding.
struct BatchShape {
  std::string name;  ///< "packed", "rows"...; "lengths" where they come from a file
  std::int64_t seqlen = 0;
  std::vector<std::vector<std::int64_t>> rows;  ///< lengths, in tokens

  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::int64_t tokens() const { return batch() * seqlen; }  ///< with padding
  [[nodiscard]] std::int64_t real_tokens() const;
  [[nodiscard]] std::int64_t sequences() const;
  [[nodiscard]] std::int64_t longest() const;
};

/// Where a sequence lies in a batch.
struct SequencePlace {
  std::int64_t row, start, length;
};

/// `documents` are those of the lengths file; empty without one. Throws std::invalid_argument for a shape that does not
/// exist, an option out of range, and options that do not go together, saying which.
[[nodiscard]] BatchShape batch_shape(const ShapeOptions& options, std::span<const Document> documents);
/// "packed: log-normal lengths...; one-sequence: ..." for the help page.
[[nodiscard]] std::string batch_shape_help();

/// Lengths that fill `tokens`: log-normal, held between 57 and 2048, mean about 640; the last is cut to fit.
[[nodiscard]] std::vector<std::int64_t> lognormal_lengths(std::int64_t tokens, std::uint64_t seed);
/// The form `rows` where every row is one sequence without padding, else `position_indices`.
[[nodiscard]] Boundaries boundaries_of(const BatchShape& shape);
/// Row after row, from left to right.
[[nodiscard]] std::vector<SequencePlace> sequences_of(const BatchShape& shape);
/// The same sequences padded to the longest, as kernels without boundaries need them: each alone in a row that is
/// computed to its end.
[[nodiscard]] BatchShape padded_shape(const BatchShape& shape);

}  // namespace packjit
