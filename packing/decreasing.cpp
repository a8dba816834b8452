#include "packing/decreasing.hpp"

#include <queue>
#include <set>
#include <string_view>
#include <utility>

#include "packing/call_scheduler.hpp"
#include "packing/candidate.hpp"
#include "packing/longest_first.hpp"
#include "packing/room_by_row.hpp"
#include "packing/row_order.hpp"

namespace packjit {
namespace {

class Decreasing {
 public:
  Decreasing(std::span<const Document> documents, const std::vector<std::int64_t>& chosen, const PackOptions& options,
             Fit fit)
      : options_(options), fit_(fit), longest_first_(documents, chosen, options), room_(1) {}

  std::vector<Row> run() {
    while (!longest_first_.empty() || !rests_.empty()) {
      const Candidate candidate = take();
      const std::int64_t row = put(candidate);
      const Piece& piece = candidate.piece;
      if (piece.more) rests_.push({longest_first_.after(piece), candidate.left - piece.length, row});
    }
    return std::move(rows_);
  }

 private:
  using Room = std::pair<std::int64_t, std::int64_t>;  ///< free tokens, number of row

  /// The longest of the documents not begun and of the rests of those cut. All rests of a document placed at once would
  /// leave rows that follow each other, with nothing that can run beside them.
  Candidate take() {
    if (!longest_first_.empty()) {
      const Candidate whole{longest_first_.next(), longest_first_.next_length(), 0};
      if (rests_.empty() || LessLeft()(rests_.top(), whole)) {
        longest_first_.pop();
        return whole;
      }
    }
    const Candidate rest = rests_.top();
    rests_.pop();
    return rest;
  }

  std::int64_t put(const Candidate& candidate) {
    const std::int64_t number = row_for(candidate);
    rows_[static_cast<std::size_t>(number - 1)].pieces.push_back(candidate.piece);
    const std::int64_t before = room_.room(number);
    const std::int64_t after = before - candidate.piece.length;
    room_.set(number, after);
    if (fit_ == Fit::best) {
      auto node = by_room_.extract({before, number});
      if (after == 0) return number;
      node.value().first = after;
      by_room_.insert(std::move(node));
    }
    return number;
  }

  std::int64_t row_for(const Candidate& candidate) {
    const Piece& piece = candidate.piece;
    // A piece that others follow takes the first row, not the fullest: those others need later ones.
    if (fit_ == Fit::best && !piece.more) {
      auto row = by_room_.lower_bound({piece.length, 0});
      for (int looked_at = 0; row != by_room_.end() && looked_at < kRowsLookedAt; ++row, ++looked_at) {
        if (row->second > candidate.after) return row->second;
      }
    }
    if (const auto number = room_.first_after(candidate.after, piece.length)) return *number;
    rows_.emplace_back();
    const auto number = static_cast<std::int64_t>(rows_.size());
    room_.set(number, options_.pack_length);
    if (fit_ == Fit::best) by_room_.emplace(options_.pack_length, number);
    return number;
  }

  const PackOptions& options_;
  Fit fit_;
  LongestFirst longest_first_;
  std::priority_queue<Candidate, std::vector<Candidate>, LessLeft> rests_;
  std::vector<Row> rows_;   ///< row number n at n - 1
  RoomByRow room_;          ///< by number
  std::set<Room> by_room_;  ///< rows that are not full, for Fit::best
};

PackPlan plan_decreasing(std::string_view name, std::span<const Document> documents, const PackOptions& options,
                         Fit fit) {
  PackPlan plan = begin_plan(name, documents, options);
  SplitMix64 random(options.seed);
  CallScheduler scheduler(options.rows_per_call);
  std::vector<Row> rows = decreasing_rows(documents, all_indices(documents.size()), plan.options, fit);
  for (Row& row : leaving_order(std::move(rows), random)) scheduler.add(std::move(row));
  plan.calls = scheduler.flush();
  return plan;
}

}  // namespace

std::vector<Row> decreasing_rows(std::span<const Document> documents, const std::vector<std::int64_t>& chosen,
                                 const PackOptions& options, Fit fit) {
  return Decreasing(documents, chosen, options, fit).run();
}

PackPlan plan_first_fit_decreasing(std::span<const Document> documents, const PackOptions& options) {
  return plan_decreasing("ffd", documents, options, Fit::first);
}

PackPlan plan_best_fit_decreasing(std::span<const Document> documents, const PackOptions& options) {
  return plan_decreasing("bfd", documents, options, Fit::best);
}

}  // namespace packjit
