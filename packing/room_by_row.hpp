#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace packjit {

/// The room of rows numbered from `first` on: finds the first one that takes a piece, in logarithmic time.
class RoomByRow {
 public:
  explicit RoomByRow(std::int64_t first = 0) : first_(first), most_(2, 0) {}

  /// Rows that were never set have no room.
  void set(std::int64_t row, std::int64_t room) {
    const auto index = static_cast<std::size_t>(row - first_);
    while (index >= leaves()) double_leaves();
    std::size_t node = leaves() + index;
    most_[node] = room;
    while (node > 1) {
      node /= 2;
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
  }

  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    return most_[leaves() + static_cast<std::size_t>(row - first_)];
  }

  /// The first of the rows with the most room; at least one row must have been set.
  [[nodiscard]] std::int64_t roomiest() const {
    std::size_t node = 1;
    while (node < leaves()) node = most_[2 * node] == most_[node] ? 2 * node : 2 * node + 1;
    return first_ + static_cast<std::int64_t>(node - leaves());
  }

  /// The first row after `row` with room for `length` (at least 1) tokens.
  [[nodiscard]] std::optional<std::int64_t> first_after(std::int64_t row, std::int64_t length) const {
    const auto begin = static_cast<std::size_t>(std::max<std::int64_t>(row + 1 - first_, 0));
    if (begin >= leaves()) return std::nullopt;
    std::size_t node = leaves() + begin;
    while (most_[node] < length) {
      while (node % 2 == 1) node /= 2;  // a right child: what comes after it lies above
      if (node == 0) return std::nullopt;
      ++node;
    }
    while (node < leaves()) node = most_[2 * node] >= length ? 2 * node : 2 * node + 1;
    return first_ + static_cast<std::int64_t>(node - leaves());
  }

 private:
  [[nodiscard]] std::size_t leaves() const { return most_.size() / 2; }

  void double_leaves() {
    const std::size_t before = leaves();
    std::vector<std::int64_t> larger(4 * before, 0);
    std::copy(most_.begin() + static_cast<std::ptrdiff_t>(before), most_.end(),
              larger.begin() + static_cast<std::ptrdiff_t>(2 * before));
    for (std::size_t node = 2 * before - 1; node > 0; --node) {
      larger[node] = std::max(larger[2 * node], larger[2 * node + 1]);
    }
    most_ = std::move(larger);
  }

  std::int64_t first_;
  std::vector<std::int64_t> most_;  ///< a complete binary tree, root at 1: the most room below each node
};

}  // namespace packjit
