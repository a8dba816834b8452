#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "packing/packing.hpp"

namespace packjit {

/// What a plan costs and what it saves. Counts are of tokens unless said otherwise; "padded" counts include padding.
struct PackStatistics {
  std::int64_t documents = 0, documents_cut = 0, pieces = 0, rows = 0, calls = 0;  ///< plain counts
  std::int64_t longest = 0;
  std::int64_t tokens = 0;         ///< real ones
  std::int64_t padded_tokens = 0;  ///< rows * pack length
  double fill_rate = 0;            ///< tokens / padded_tokens
  /// Each piece of the plan alone in a row of the pack length: documents cut at the same places, none of it dropped.
  std::int64_t padded_to_pack_length = 0;
  /// Each document alone in one row as long as the longest document.
  std::int64_t padded_to_longest = 0;
  /// How far documents moved: difference between place of arrival and place of first token in the plan, in documents.
  double mean_order_drift = 0;
  std::int64_t largest_order_drift = 0;
  /// From a piece to the next piece of its document, in calls (1: the very next call); 0 where nothing was cut.
  double mean_handover_distance = 0;
  std::int64_t largest_handover_distance = 0;

  [[nodiscard]] std::int64_t padding() const { return padded_tokens - tokens; }
  /// Padding tokens that the plan saves against the two ways above. Rows as long as the longest document can need fewer
  /// tokens than the plan (few documents, one of them just longer than a row): then nothing is avoided, 0.
  [[nodiscard]] std::int64_t avoided_to_pack_length() const { return padded_to_pack_length - padded_tokens; }
  [[nodiscard]] std::int64_t avoided_to_longest() const {
    return std::max<std::int64_t>(padded_to_longest - padded_tokens, 0);
  }
};

/// `documents` are those that the plan was made of; throws std::invalid_argument where their number differs.
[[nodiscard]] PackStatistics statistics_of(const PackPlan& plan, std::span<const Document> documents);

}  // namespace packjit
