#include "packing/row_order.hpp"

#include <algorithm>

namespace packjit {

Predecessors::Predecessors(const std::vector<Row>& rows) : none_(rows.size()) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const Piece& piece : rows[i].pieces) {
      if (piece.more) row_of_end_[{piece.document, piece.offset + piece.length}] = i;
    }
  }
}

std::size_t Predecessors::of(const Piece& piece) const {
  if (!piece.continues) return none_;
  const auto found = row_of_end_.find({piece.document, piece.offset});
  return found == row_of_end_.end() ? none_ : found->second;
}

std::vector<std::size_t> predecessors_first(const std::vector<Row>& rows) {
  const Predecessors predecessors(rows);
  std::vector<char> is_continued(rows.size() + 1, 0);
  for (const Row& row : rows) {
    for (const Piece& piece : row.pieces) is_continued[predecessors.of(piece)] = 1;
  }
  std::vector<std::size_t> order;
  order.reserve(rows.size());
  std::vector<char> visited(rows.size(), 0);
  std::vector<std::pair<std::size_t, std::size_t>> path;  // row, next of its pieces to follow; a chain can be long
  for (std::size_t last = 0; last < rows.size(); ++last) {
    if (is_continued[last]) continue;  // reached from the row that continues it
    path.emplace_back(last, 0);
    while (!path.empty()) {
      auto& [number, next_piece] = path.back();
      if (next_piece == rows[number].pieces.size()) {
        order.push_back(number);
        path.pop_back();
        continue;
      }
      const std::size_t before = predecessors.of(rows[number].pieces[next_piece++]);
      if (before == predecessors.none() || visited[before]) continue;
      visited[before] = 1;
      path.emplace_back(before, 0);
    }
  }
  return order;
}

void sort_pieces(Row& row) {
  std::sort(row.pieces.begin(), row.pieces.end(),
            [](const Piece& a, const Piece& b) { return a.document < b.document; });
}

std::vector<Row> leaving_order(std::vector<Row> rows, SplitMix64& random) {
  shuffle(rows, random);
  std::vector<Row> ordered;
  ordered.reserve(rows.size());
  for (const std::size_t number : predecessors_first(rows)) {
    ordered.push_back(std::move(rows[number]));
    sort_pieces(ordered.back());
  }
  return ordered;
}

}  // namespace packjit
