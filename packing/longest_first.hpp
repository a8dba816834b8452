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
  LongestFirst(std::span<const Document> documents, std::vector<std::int64_t> chosen, const PackOptions& options)
      : documents_(documents), options_(options), order_(std::move(chosen)) {
    std::sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
      const std::int64_t length_a = document(a).length;
      const std::int64_t length_b = document(b).length;
      return length_a != length_b ? length_a > length_b : a < b;
    });
  }

  [[nodiscard]] bool empty() const { return next_ == order_.size(); }

  /// The first piece of the next document, and the length of that document.
  [[nodiscard]] Piece next() const { return piece_at(document(order_[next_]), order_[next_], 0, options_); }
  [[nodiscard]] std::int64_t next_length() const { return document(order_[next_]).length; }
  void pop() { ++next_; }
  /// The piece after one that has `more`.
  [[nodiscard]] Piece after(const Piece& piece) const {
    return piece_at(document(piece.document), piece.document, piece.offset + piece.length, options_);
  }

 private:
  [[nodiscard]] const Document& document(std::int64_t index) const {
    return documents_[static_cast<std::size_t>(index)];
  }

  std::span<const Document> documents_;
  const PackOptions& options_;
  std::vector<std::int64_t> order_;
  std::size_t next_ = 0;
};

/// 0, 1, ... count - 1
inline std::vector<std::int64_t> all_indices(std::size_t count) {
  std::vector<std::int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

}  // namespace packjit
