#include <deque>

#include "packing/call_scheduler.hpp"
#include "packing/cutting.hpp"
#include "packing/packing.hpp"

namespace packjit {
namespace {

class NextFit {
 public:
  NextFit(std::span<const Document> documents, const PackOptions& options)
      : documents_(documents), options_(options), free_(options.pack_length), scheduler_(options.rows_per_call) {}

  std::vector<Call> run() {
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      place(piece_at(documents_[i], static_cast<std::int64_t>(i), 0, options_));
    }
    while (!next_row_.empty() || !ready_.empty()) {
      seal();
      place_ready();
    }
    seal();
    return scheduler_.flush();
  }

 private:
  void place(const Piece& piece) {
    while (piece.length > free_) {
      seal();
      place_ready();
    }
    put(piece);
  }

  /// Pieces of cut documents go before whatever arrives.
  void place_ready() {
    while (!ready_.empty()) {
      const Piece piece = ready_.front();
      ready_.pop_front();
      if (piece.length > free_) seal();
      put(piece);
    }
  }

  void put(const Piece& piece) {
    row_.pieces.push_back(piece);
    free_ -= piece.length;
    if (piece.more) {
      const Document& document = documents_[static_cast<std::size_t>(piece.document)];
      next_row_.push_back(piece_at(document, piece.document, piece.offset + piece.length, options_));
    }
  }

  void seal() {
    if (!row_.pieces.empty()) scheduler_.add(std::move(row_));
    row_ = {};
    free_ = options_.pack_length;
    ready_.insert(ready_.end(), next_row_.begin(), next_row_.end());
    next_row_.clear();
  }

  std::span<const Document> documents_;
  const PackOptions& options_;
  Row row_;  ///< the one open row
  std::int64_t free_;
  std::deque<Piece> ready_;      ///< pieces that may enter the open row
  std::vector<Piece> next_row_;  ///< pieces whose predecessor lies in the open row
  CallScheduler scheduler_;
};

}  // namespace

PackPlan plan_next_fit(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("next-fit", documents, options);
  plan.calls = NextFit(documents, plan.options).run();
  return plan;
}

}  // namespace packjit
