#include "packing/cutting.hpp"

#include <algorithm>

namespace packjit {

std::int64_t piece_end(const Document& document, std::int64_t offset, std::int64_t cut) {
  const std::int64_t reach = offset + cut;
  if (reach >= document.length) return document.length;
  const auto after = std::upper_bound(document.breaks.begin(), document.breaks.end(), reach);
  if (after == document.breaks.begin() || *(after - 1) <= offset) return reach;
  return *(after - 1);
}

Piece piece_at(const Document& document, std::int64_t index, std::int64_t offset, std::int64_t cut) {
  const std::int64_t end = piece_end(document, offset, cut);
  return {index, offset, end - offset, offset > 0, end < document.length};
}

std::int64_t count_pieces(const Document& document, std::int64_t cut, std::int64_t limit) {
  std::int64_t pieces = 0;
  for (std::int64_t offset = 0; offset < document.length && pieces <= limit; ++pieces) {
    offset = piece_end(document, offset, cut);
  }
  return pieces;
}

}  // namespace packjit
