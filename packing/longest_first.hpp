#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "packing/cutting.hpp"

namespace packjit {

/// Documents from the longest to the shortest; equal ones in order of arrival.
class LongestFirst {
 public:
  /// `chosen` are indices of documents; documents and options have to outlive this.
  LongestFirst(std::span<const Document> documents, const std::vector<std::int64_t>& chosen, const PackOptions& options)
      : documents_(documents), options_(options) {
    order_.reserve(chosen.size());
    for (const std::int64_t index : chosen) order_.push_back({document(index).length, index});
    std::sort(order_.begin(), order_.end(), [](const Entry& a, const Entry& b) {
      return a.length != b.length ? a.length > b.length : a.index < b.index;
    });
  }

  [[nodiscard]] bool empty() const { return next_ == order_.size(); }

  /// The first piece of the next document, and the length of that document.
  [[nodiscard]] Piece next() const {
    const Entry& entry = order_[next_];
    if (entry.length <= options_.cut) return {entry.index, 0, entry.length, false, false};
    return piece_at(document(entry.index), entry.index, 0, options_);
  }
  [[nodiscard]] std::int64_t next_length() const { return order_[next_].length; }
  void pop() { ++next_; }
  /// The piece after one that has `more`.
  [[nodiscard]] Piece after(const Piece& piece) const {
    return piece_at(document(piece.document), piece.document, piece.offset + piece.length, options_);
  }

 private:
  /// The length stands beside the index: looked up in the documents, it would be a cache miss for each of millions.
  struct Entry {
    std::int64_t length, index;
  };

  [[nodiscard]] const Document& document(std::int64_t index) const {
    return documents_[static_cast<std::size_t>(index)];
  }

  std::span<const Document> documents_;
  const PackOptions& options_;
  std::vector<Entry> order_;
  std::size_t next_ = 0;
};

/// 0, 1, ... count - 1
inline std::vector<std::int64_t> all_indices(std::size_t count) {
  std::vector<std::int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

}  // namespace packjit
