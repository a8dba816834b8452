#include "packing/cutting.hpp"

#include <algorithm>
#include <queue>

namespace packjit {

std::int64_t piece_end(const Document& document, std::int64_t offset, const PackOptions& options) {
  if (document.length - offset <= options.cut) return document.length;
  const std::int64_t limit = std::min(offset + options.cut, document.length - options.min_piece);
  const std::int64_t earliest = std::max(offset + options.min_piece, limit - options.cut_slack);
  const auto after = std::upper_bound(document.breaks.begin(), document.breaks.end(), limit);
  if (after == document.breaks.begin() || *(after - 1) < earliest) return limit;
  return *(after - 1);
}

Piece piece_at(const Document& document, std::int64_t index, std::int64_t offset, const PackOptions& options) {
  const std::int64_t end = piece_end(document, offset, options);
  return {index, offset, end - offset, offset > 0, end < document.length};
}

std::int64_t count_pieces(const Document& document, const PackOptions& options, std::int64_t limit) {
  std::int64_t pieces = 0;
  for (std::int64_t offset = 0; offset < document.length && pieces <= limit; ++pieces) {
    offset = piece_end(document, offset, options);
  }
  return pieces;
}

std::int64_t most_pieces_in(std::int64_t tokens, std::span<const Document> documents, const PackOptions& options) {
  std::priority_queue<std::int64_t> shortest;  // the longest of them on top
  std::int64_t together = 0;
  for (const Document& document : documents) {
    for (std::int64_t offset = 0; offset < document.length;) {
      const std::int64_t end = piece_end(document, offset, options);
      shortest.push(end - offset);
      together += end - offset;
      for (; together > tokens; shortest.pop()) together -= shortest.top();
      offset = end;
    }
  }
  return static_cast<std::int64_t>(shortest.size());
}

}  // namespace packjit
