#include "packing/call_scheduler.hpp"

#include <algorithm>
#include <stdexcept>

namespace packjit {

CallScheduler::CallScheduler(std::int64_t rows_per_call) : rows_per_call_(static_cast<std::size_t>(rows_per_call)) {}

void CallScheduler::add(Row row) {
  const std::size_t number = next_number_++;
  Pending pending;
  for (const Piece& piece : row.pieces) {
    if (!piece.continues) continue;
    pending.continues = true;
    const auto until = in_calls_until_.find(piece.document);
    if (until == in_calls_until_.end() || until->second < piece.offset) {
      waiting_.emplace(PieceStart{piece.document, piece.offset}, number);
      ++pending.waits_for;
    }
  }
  pending.row = std::move(row);
  const bool ready = pending.waits_for == 0;
  pending_.emplace(number, std::move(pending));
  if (ready) release(number);
  while (ready_.size() >= rows_per_call_) make_call();
}

std::vector<Call> CallScheduler::flush() {
  while (!ready_.empty()) make_call();
  if (!pending_.empty()) throw std::logic_error("packing: rows wait for each other in a circle");
  return take_calls();
}

std::vector<Call> CallScheduler::take_calls() { return std::exchange(calls_, {}); }

void CallScheduler::release(std::size_t number) {
  const std::int64_t urgency = pending_.at(number).continues ? -made_ : 1;
  ready_.emplace(urgency, number);
}

void CallScheduler::make_call() {
  Call call;
  const std::size_t rows = std::min(rows_per_call_, ready_.size());
  for (std::size_t i = 0; i < rows; ++i) {
    const auto first = ready_.begin();
    auto taken = pending_.extract(first->second);
    ready_.erase(first);
    call.rows.push_back(std::move(taken.mapped().row));
  }
  calls_.push_back(std::move(call));
  ++made_;
  // Only now: a row released by this call must not enter this call.
  for (const Row& row : calls_.back().rows) {
    for (const Piece& piece : row.pieces) {
      if (!piece.more) {
        if (piece.continues) in_calls_until_.erase(piece.document);
        continue;
      }
      const std::int64_t end = piece.offset + piece.length;
      in_calls_until_[piece.document] = end;
      const auto waiting = waiting_.find({piece.document, end});
      if (waiting == waiting_.end()) continue;
      const std::size_t number = waiting->second;
      waiting_.erase(waiting);
      if (--pending_.at(number).waits_for == 0) release(number);
    }
  }
}

}  // namespace packjit
