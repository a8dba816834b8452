#include <algorithm>
#include <iterator>
#include <optional>
#include <queue>
#include <set>

#include "packing/call_scheduler.hpp"
#include "packing/cutting.hpp"
#include "packing/packing.hpp"
#include "packing/random.hpp"

namespace packjit {
namespace {

/// How many open rows are looked at for a piece that continues another. Bounds the time for documents of very many
/// pieces, none of which fits into the open rows of lower stage.
constexpr int kRowsLookedAt = 256;

/// Every row has a stage, and a piece lies in a row of higher stage than the piece before it. So rows never wait for
/// each other in a circle, whatever documents they share.
struct OpenRow {
  Row row;
  std::int64_t free = 0;
  std::int64_t stage = 0;
  std::int64_t number = 0;  ///< of opening
};

/// A piece to be placed, and the lowest stage it may have.
struct Candidate {
  Piece piece;
  std::int64_t stage = 0;
};
struct Shorter {
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.piece.length != b.piece.length) return a.piece.length < b.piece.length;
    return a.piece.document > b.piece.document;
  }
};

struct LessRoom {
  bool operator()(const OpenRow& a, const OpenRow& b) const {
    return a.free != b.free ? a.free < b.free : a.number < b.number;
  }
};

class LocalGreedy {
 public:
  LocalGreedy(std::span<const Document> documents, const PackOptions& options)
      : documents_(documents),
        options_(options),
        random_(options.seed),
        scheduler_(static_cast<std::int64_t>(documents.size()), options.rows_per_call) {}

  std::vector<Call> run() {
    const std::size_t window =
        std::min(documents_.size(), static_cast<std::size_t>(options_.window));
    for (std::size_t first = 0; first < documents_.size(); first += window) {
      const std::size_t last = std::min(documents_.size(), first + window);
      pack_window(first, last);
      seal_all_but(last == documents_.size() ? 0 : static_cast<std::size_t>(options_.open_packs));
    }
    return scheduler_.flush();
  }

 private:
  void pack_window(std::size_t first, std::size_t last) {
    std::priority_queue<Candidate, std::vector<Candidate>, Shorter> longest_first;
    for (std::size_t i = first; i < last; ++i) {
      longest_first.push({piece_at(documents_[i], static_cast<std::int64_t>(i), 0, options_.cut), 0});
    }
    while (!longest_first.empty()) {
      const Candidate candidate = longest_first.top();
      longest_first.pop();
      const Piece& piece = candidate.piece;
      const std::int64_t stage = put(candidate);
      if (piece.more) {
        const Document& document = documents_[static_cast<std::size_t>(piece.document)];
        longest_first.push(
            {piece_at(document, piece.document, piece.offset + piece.length, options_.cut), stage + 1});
      }
    }
  }

  /// Returns the stage of the row that took the piece.
  std::int64_t put(const Candidate& candidate) {
    OpenRow row = take_best_row(candidate);
    row.row.pieces.push_back(candidate.piece);
    row.free -= candidate.piece.length;
    const std::int64_t stage = row.stage;
    if (row.free == 0) {
      sealed_.push_back(std::move(row.row));
    } else {
      open_.insert(std::move(row));
    }
    return stage;
  }

  OpenRow take_best_row(const Candidate& candidate) {
    OpenRow least_room;
    least_room.free = candidate.piece.length;
    auto row = open_.lower_bound(least_room);
    for (int looked_at = 0; row != open_.end() && looked_at < kRowsLookedAt; ++row, ++looked_at) {
      if (row->stage >= candidate.stage) return std::move(open_.extract(row).value());
    }
    return {{}, options_.pack_length, candidate.stage, ++opened_};
  }

  /// Keeps the rows with the most room open and hands the others on.
  void seal_all_but(std::size_t kept) {
    while (open_.size() > kept) sealed_.push_back(std::move(open_.extract(open_.begin()).value().row));
    shuffle(sealed_, random_);
    for (Row& row : sealed_) {
      std::sort(row.pieces.begin(), row.pieces.end(),
                [](const Piece& a, const Piece& b) { return a.document < b.document; });
      scheduler_.add(std::move(row));
    }
    sealed_.clear();
  }

  std::span<const Document> documents_;
  const PackOptions& options_;
  SplitMix64 random_;
  std::set<OpenRow, LessRoom> open_;
  std::vector<Row> sealed_;  ///< in this window
  std::int64_t opened_ = 0;
  CallScheduler scheduler_;
};

}  // namespace

PackPlan plan_local_greedy(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("local-greedy", documents, options);
  plan.calls = LocalGreedy(documents, plan.options).run();
  return plan;
}

}  // namespace packjit
