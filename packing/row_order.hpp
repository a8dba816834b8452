#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "packing/packing.hpp"
#include "packing/random.hpp"

namespace packjit {

/// Which row each piece of a list of rows continues.
class Predecessors {
 public:
  explicit Predecessors(const std::vector<Row>& rows);
  /// Index of the row with the piece before this one; none() where it is not in the list.
  [[nodiscard]] std::size_t of(const Piece& piece) const;
  [[nodiscard]] std::size_t none() const { return none_; }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> row_of_end_;  ///< by document and end of piece
  std::size_t none_;
};

/// An order of the rows (indices) such that those a row continues come right before it, as far as they are among them:
/// its state then waits for few calls. Otherwise the order stays. The rows must not wait for each other in a circle.
[[nodiscard]] std::vector<std::size_t> predecessors_first(const std::vector<Row>& rows);

/// Rows that are sealed together, in an order drawn from `random` that keeps the pieces of a document in order and near
/// each other. Inside a row pieces come in order of arrival.
[[nodiscard]] std::vector<Row> leaving_order(std::vector<Row> rows, SplitMix64& random);

/// Pieces in order of arrival.
void sort_pieces(Row& row);

}  // namespace packjit
