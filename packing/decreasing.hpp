#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// Which of the rows that take a piece gets it: the one opened first, or the one with the least room.
enum class Fit { first, best };

/// The documents whose indices are `chosen`, from the longest to the shortest, each piece into the first row or the row
/// it fills best; rows in the order in which they were opened. O(n log n).
[[nodiscard]] std::vector<Row> decreasing_rows(std::span<const Document> documents,
                                               const std::vector<std::int64_t>& chosen, const PackOptions& options,
                                               Fit fit);

}  // namespace packjit
