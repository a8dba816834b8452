#include <algorithm>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "packing/longest_first.hpp"
#include "packing/room_by_row.hpp"
#include "packing/row_order.hpp"

namespace packjit {
namespace {

/// How many calls are filled together: enough for short documents to level them, and a bound on how far documents move.
constexpr std::int64_t kCallsTogether = 256;
/// The most rows that these calls may have.
constexpr std::int64_t kMaximumRows = std::int64_t{1} << 24;

/// Longest processing time first: all rows of `calls` calls are there from the start. Cut documents take the first
/// calls with room; each other document, longest first, goes to the emptiest row. So the longest ones come to lie in
/// rows of their own, those of a call of nearly one length, and the short ones level the rows. Row number n (from 1)
/// belongs to call (n - 1) / rows_per_call.
class Levelled {
 public:
  Levelled(std::span<const Document> documents, const std::vector<std::int64_t>& chosen, const PackOptions& options,
           std::int64_t rows_per_call, std::int64_t calls)
      : options_(options), rows_per_call_(rows_per_call), longest_first_(documents, chosen, options), room_(1) {
    for (std::int64_t i = 0; i < calls; ++i) open_call();
  }

  /// Documents that do not fit are left over, or, where `all` is true, have further calls opened for them. The pieces
  /// of a document are placed at once, while the calls that follow the first one still have room.
  std::vector<std::int64_t> fill(bool all) {
    std::vector<std::int64_t> left_over;
    while (!longest_first_.empty()) {
      Piece piece = longest_first_.next();
      longest_first_.pop();
      std::optional<std::int64_t> row = piece.more ? row_after(0, piece) : emptiest(piece, all);
      if (!row) {
        left_over.push_back(piece.document);
        continue;
      }
      put(piece, *row);
      while (piece.more) {
        piece = longest_first_.after(piece);
        row = row_after(last_of_call(*row), piece);
        put(piece, *row);
      }
    }
    return left_over;
  }

  /// The calls, without the rows that stayed empty.
  std::vector<Call> calls() {
    std::vector<Call> made;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (i % static_cast<std::size_t>(rows_per_call_) == 0) made.emplace_back();
      if (rows_[i].pieces.empty()) continue;
      sort_pieces(rows_[i]);
      made.back().rows.push_back(std::move(rows_[i]));
    }
    std::erase_if(made, [](const Call& call) { return call.rows.empty(); });
    return made;
  }

 private:
  void put(const Piece& piece, std::int64_t row) {
    rows_[static_cast<std::size_t>(row - 1)].pieces.push_back(piece);
    room_.set(row, room_.room(row) - piece.length);
  }

  std::optional<std::int64_t> emptiest(const Piece& piece, bool all) {
    const std::int64_t row = room_.roomiest();
    if (room_.room(row) >= piece.length) return row;
    if (!all) return std::nullopt;
    open_call();
    return static_cast<std::int64_t>(rows_.size()) - rows_per_call_ + 1;
  }

  /// The emptiest row of the first call with room behind row `after`, a call's last: so states wait for few calls.
  std::int64_t row_after(std::int64_t after, const Piece& piece) {
    std::optional<std::int64_t> found = room_.first_after(after, piece.length);
    if (!found) {
      found = static_cast<std::int64_t>(rows_.size()) + 1;
      open_call();
    }
    std::int64_t best = *found;
    for (std::int64_t row = *found; row <= last_of_call(*found); ++row) {
      if (room_.room(row) > room_.room(best)) best = row;
    }
    return best;
  }

  [[nodiscard]] std::int64_t last_of_call(std::int64_t row) const {
    return ((row - 1) / rows_per_call_ + 1) * rows_per_call_;
  }

  void open_call() {
    if (static_cast<std::int64_t>(rows_.size()) + rows_per_call_ > kMaximumRows) {
      throw std::invalid_argument("packing: balanced would need more than " + std::to_string(kMaximumRows) +
                                  " rows in calls of " + std::to_string(rows_per_call_) +
                                  "; lower the rows per call, or pack fewer documents at a time");
    }
    for (std::int64_t i = 0; i < rows_per_call_; ++i) {
      rows_.emplace_back();
      room_.set(static_cast<std::int64_t>(rows_.size()), options_.pack_length);
    }
  }

  const PackOptions& options_;
  std::int64_t rows_per_call_;
  LongestFirst longest_first_;
  std::vector<Row> rows_;
  RoomByRow room_;
};

/// Appends the calls in an order drawn from `random`. Calls between which a document goes on stay together.
void append_shuffled(std::vector<Call>& calls, std::vector<Call> added, SplitMix64& random) {
  std::vector<std::vector<Call>> blocks;
  std::int64_t open_documents = 0;
  for (Call& call : added) {
    if (open_documents == 0) blocks.emplace_back();
    for (const Row& row : call.rows) {
      for (const Piece& piece : row.pieces) {
        open_documents += static_cast<std::int64_t>(piece.more) - static_cast<std::int64_t>(piece.continues);
      }
    }
    blocks.back().push_back(std::move(call));
  }
  shuffle(blocks, random);
  for (std::vector<Call>& block : blocks) std::move(block.begin(), block.end(), std::back_inserter(calls));
}

}  // namespace

PackPlan plan_balanced(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("balanced", documents, options);
  const auto count = static_cast<std::int64_t>(documents.size());
  const std::int64_t rows_per_call = std::min(plan.options.rows_per_call, count);
  const std::int64_t tokens_of_call = rows_per_call * plan.options.pack_length;
  SplitMix64 random(plan.options.seed);
  std::vector<std::int64_t> chosen;
  std::int64_t tokens = 0;
  for (std::int64_t next = 0; next < count;) {
    while (next < count && tokens / kCallsTogether < tokens_of_call) {
      tokens += documents[static_cast<std::size_t>(next)].length;
      chosen.push_back(next++);
    }
    const bool is_last = next == count;
    const std::int64_t needed = (tokens + tokens_of_call - 1) / tokens_of_call;
    Levelled levelled(documents, chosen, plan.options, rows_per_call,
                      is_last ? needed : std::min(needed, kCallsTogether));
    chosen = levelled.fill(is_last);
    append_shuffled(plan.calls, levelled.calls(), random);
    tokens = 0;
    for (const std::int64_t document : chosen) tokens += documents[static_cast<std::size_t>(document)].length;
  }
  return plan;
}

}  // namespace packjit
