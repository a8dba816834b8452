#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "packing/call_scheduler.hpp"
#include "packing/cutting.hpp"
#include "packing/packing.hpp"
#include "packing/random.hpp"
#include "packing/room_by_row.hpp"

namespace packjit {
namespace {

/// How many open rows are looked at for the one that a piece fills best, before the first that takes it will do.
constexpr int kRowsLookedAt = 256;

/// A piece lies in a row opened later than the row of the piece before it. So rows never wait for each other in a
/// circle, whatever documents they share.
struct OpenRow {
  Row row;
  std::int64_t free = 0;
  std::int64_t number = 0;  ///< of opening
};

/// A piece to be placed.
struct Candidate {
  Piece piece;
  std::int64_t left = 0;   ///< tokens of the document from this piece on
  std::int64_t after = 0;  ///< the row of the piece before it
};
/// By what is left of the document, not by the piece: a document of many pieces needs as many rows, one after the
/// other, so it has to begin early for the others to fill those rows.
struct LessLeft {
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.left != b.left) return a.left < b.left;
    return a.piece.document > b.piece.document;
  }
};

struct LessRoom {
  bool operator()(const OpenRow& a, const OpenRow& b) const {
    return a.free != b.free ? a.free < b.free : a.number < b.number;
  }
};

/// Which row each piece of a list of rows continues.
class Predecessors {
 public:
  explicit Predecessors(const std::vector<Row>& rows) : none_(rows.size()) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const Piece& piece : rows[i].pieces) {
        if (piece.more) row_of_end_[{piece.document, piece.offset + piece.length}] = i;
      }
    }
  }
  /// Index of the row with the piece before this one; none() where it is not in the list.
  [[nodiscard]] std::size_t of(const Piece& piece) const {
    const auto found = row_of_end_.find({piece.document, piece.offset});
    return found == row_of_end_.end() ? none_ : found->second;
  }
  [[nodiscard]] std::size_t none() const { return none_; }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> row_of_end_;  ///< by document and end of piece
  std::size_t none_;
};

/// Reorders rows such that those a row continues come right before it, as far as they are among them: its state then
/// waits for few calls. Otherwise the order stays. The rows must not wait for each other in a circle.
std::vector<Row> predecessors_first(std::vector<Row> rows) {
  const Predecessors predecessors(rows);
  std::vector<char> is_continued(rows.size() + 1, 0);
  for (const Row& row : rows) {
    for (const Piece& piece : row.pieces) is_continued[predecessors.of(piece)] = 1;
  }
  std::vector<Row> ordered;
  ordered.reserve(rows.size());
  std::vector<char> visited(rows.size(), 0);
  std::vector<std::pair<std::size_t, std::size_t>> path;  // row, next of its pieces to follow; a chain can be long
  for (std::size_t last = 0; last < rows.size(); ++last) {
    if (is_continued[last]) continue;  // reached from the row that continues it
    path.emplace_back(last, 0);
    while (!path.empty()) {
      auto& [number, next_piece] = path.back();
      if (next_piece == rows[number].pieces.size()) {
        ordered.push_back(std::move(rows[number]));
        path.pop_back();
        continue;
      }
      const std::size_t before = predecessors.of(rows[number].pieces[next_piece++]);
      if (before == predecessors.none() || visited[before]) continue;
      visited[before] = 1;
      path.emplace_back(before, 0);
    }
  }
  return ordered;
}

class LocalGreedy {
 public:
  LocalGreedy(std::span<const Document> documents, const PackOptions& options)
      : documents_(documents),
        options_(options),
        random_(options.seed),
        scheduler_(static_cast<std::int64_t>(documents.size()), options.rows_per_call) {}

  std::vector<Call> run() {
    const std::size_t window = std::min(documents_.size(), static_cast<std::size_t>(options_.window));
    for (std::size_t first = 0; first < documents_.size(); first += window) {
      const std::size_t last = std::min(documents_.size(), first + window);
      pack_window(first, last);
      seal_all_but(last == documents_.size() ? 0 : static_cast<std::size_t>(options_.open_packs));
    }
    return scheduler_.flush();
  }

 private:
  void pack_window(std::size_t first, std::size_t last) {
    std::vector<Candidate> candidates = std::move(set_aside_);
    set_aside_.clear();
    for (std::size_t i = first; i < last; ++i) {
      candidates.push_back(
          {piece_at(documents_[i], static_cast<std::int64_t>(i), 0, options_.cut), documents_[i].length, 0});
    }
    const bool is_last = last == documents_.size();
    rows_worth_opening_ = is_last ? std::numeric_limits<std::int64_t>::max() : opened_ + rows_filled_by(candidates);
    index_open_rows();
    std::priority_queue<Candidate, std::vector<Candidate>, LessLeft> longest_first({}, std::move(candidates));
    while (!longest_first.empty()) {
      const Candidate candidate = longest_first.top();
      longest_first.pop();
      const Piece& piece = candidate.piece;
      const std::optional<std::int64_t> row = put(candidate);
      if (!row) {
        set_aside_.push_back(candidate);
      } else if (piece.more) {
        const Document& document = documents_[static_cast<std::size_t>(piece.document)];
        longest_first.push({piece_at(document, piece.document, piece.offset + piece.length, options_.cut),
                            candidate.left - piece.length, *row});
      }
    }
  }

  /// How many rows these documents fill to the end, with at most one piece of a document in a row.
  [[nodiscard]] std::int64_t rows_filled_by(const std::vector<Candidate>& candidates) const {
    const auto tokens_in = [&](std::int64_t rows) {
      std::int64_t tokens = 0;
      for (const Candidate& candidate : candidates) tokens += std::min(candidate.left, rows * options_.cut);
      return tokens;
    };
    std::int64_t filled = 0;
    std::int64_t too_many = tokens_in(kMaximumLength) / options_.pack_length + 1;
    while (too_many - filled > 1) {
      const std::int64_t middle = filled + (too_many - filled) / 2;
      (tokens_in(middle) / options_.pack_length >= middle ? filled : too_many) = middle;
    }
    return filled;
  }

  void index_open_rows() {
    std::int64_t first = opened_ + 1;
    for (const OpenRow& row : open_) first = std::min(first, row.number);
    room_ = RoomByRow(first);
    for (const OpenRow& row : open_) room_.set(row.number, row.free);
  }

  /// Returns the row that took the piece; nothing where the piece has to wait for the next window.
  std::optional<std::int64_t> put(const Candidate& candidate) {
    std::optional<OpenRow> row = take_row(candidate);
    if (!row) {
      // The rest of a long document alone would leave rows nearly empty that the next window's documents can fill.
      if (candidate.piece.continues && opened_ >= rows_worth_opening_ &&
          static_cast<std::int64_t>(set_aside_.size()) < options_.window) {
        return std::nullopt;
      }
      row = OpenRow{{}, options_.pack_length, ++opened_};
    }
    row->row.pieces.push_back(candidate.piece);
    row->free -= candidate.piece.length;
    const std::int64_t number = row->number;
    room_.set(number, row->free);
    if (row->free == 0) {
      sealed_.push_back(std::move(row->row));
    } else {
      open_.insert(std::move(*row));
    }
    return number;
  }

  std::optional<OpenRow> take_row(const Candidate& candidate) {
    const Piece& piece = candidate.piece;
    OpenRow wanted;
    wanted.free = piece.length;
    // A piece that others follow takes the first row, not the fullest: those others need later ones.
    if (!piece.more) {
      auto row = open_.lower_bound(wanted);
      for (int looked_at = 0; row != open_.end() && looked_at < kRowsLookedAt; ++row, ++looked_at) {
        if (row->number > candidate.after) return std::move(open_.extract(row).value());
      }
    }
    const std::optional<std::int64_t> number = room_.first_after(candidate.after, piece.length);
    if (!number) return std::nullopt;
    wanted.free = room_.room(*number);
    wanted.number = *number;
    return std::move(open_.extract(wanted).value());
  }

  /// Keeps the rows with the most room open and hands the others on. A row is kept once only: where no short documents
  /// come, it would stay for ever, and its documents with it.
  void seal_all_but(std::size_t kept) {
    for (auto row = open_.begin(); row != open_.end();) {
      const auto next = std::next(row);
      if (row->number <= opened_before_window_) sealed_.push_back(std::move(open_.extract(row).value().row));
      row = next;
    }
    while (open_.size() > kept) sealed_.push_back(std::move(open_.extract(open_.begin()).value().row));
    opened_before_window_ = opened_;

    std::vector<Row> leaving = hold_back();
    shuffle(leaving, random_);
    for (Row& row : predecessors_first(std::move(leaving))) {
      std::sort(row.pieces.begin(), row.pieces.end(),
                [](const Piece& a, const Piece& b) { return a.document < b.document; });
      scheduler_.add(std::move(row));
    }
  }

  /// Rows that an open row continues, directly or through others, stay in `sealed_` until that row leaves, so that the
  /// pieces of a document leave together. Returns the other sealed rows.
  std::vector<Row> hold_back() {
    const Predecessors predecessors(sealed_);
    std::vector<char> held(sealed_.size() + 1, 0);
    held[predecessors.none()] = 1;
    std::vector<std::size_t> to_follow;
    const auto hold_predecessors = [&](const Row& row) {
      for (const Piece& piece : row.pieces) {
        const std::size_t before = predecessors.of(piece);
        if (held[before]) continue;
        held[before] = 1;
        to_follow.push_back(before);
      }
    };
    for (const OpenRow& open : open_) hold_predecessors(open.row);
    while (!to_follow.empty()) {
      const std::size_t row = to_follow.back();
      to_follow.pop_back();
      hold_predecessors(sealed_[row]);
    }
    std::vector<Row> staying;
    std::vector<Row> leaving;
    for (std::size_t i = 0; i < sealed_.size(); ++i) (held[i] ? staying : leaving).push_back(std::move(sealed_[i]));
    sealed_ = std::move(staying);
    return leaving;
  }

  std::span<const Document> documents_;
  const PackOptions& options_;
  SplitMix64 random_;
  std::set<OpenRow, LessRoom> open_;
  RoomByRow room_;                       ///< of open_, by number
  std::vector<Candidate> set_aside_;     ///< for the next window
  std::int64_t rows_worth_opening_ = 0;  ///< number of the last one
  std::vector<Row> sealed_;              ///< in this window, or held back
  std::int64_t opened_ = 0;              ///< rows so far
  std::int64_t opened_before_window_ = 0;
  CallScheduler scheduler_;
};

}  // namespace

PackPlan plan_local_greedy(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("local-greedy", documents, options);
  plan.calls = LocalGreedy(documents, plan.options).run();
  return plan;
}

}  // namespace packjit
