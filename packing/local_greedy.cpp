#include "packing/local_greedy.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "packing/call_scheduler.hpp"
#include "packing/candidate.hpp"
#include "packing/cutting.hpp"
#include "packing/random.hpp"
#include "packing/room_by_row.hpp"
#include "packing/row_order.hpp"

namespace packjit {
namespace {

struct OpenRow {
  Row row;
  std::int64_t free = 0;
  std::int64_t number = 0;  ///< of opening
};

struct LessRoom {
  bool operator()(const OpenRow& a, const OpenRow& b) const {
    return a.free != b.free ? a.free < b.free : a.number < b.number;
  }
};

}  // namespace

class LocalGreedyStream::State {
 public:
  explicit State(const PackOptions& options)
      : options_(checked_options(options)), random_(options.seed), scheduler_(options.rows_per_call) {}

  /// A full window is packed when the next document comes: only then it is known not to be the last.
  std::vector<Call> add(Document document) {
    check_document(document, arrived_);
    std::vector<Call> calls;
    if (static_cast<std::int64_t>(window_.size()) == options_.window) {
      pack_window(false);
      seal_all_but(static_cast<std::size_t>(options_.open_packs));
      calls = scheduler_.take_calls();
      for (const Call& call : calls) tokens_held_ -= tokens_of(call);
    }
    tokens_held_ += document.length;
    window_.push_back({piece_at(document, arrived_, 0, options_), document.length, 0});
    if (document.length > options_.cut) cut_documents_.emplace(arrived_, std::move(document));
    ++arrived_;
    return calls;
  }

  std::vector<Call> finish() {
    pack_window(true);
    seal_all_but(0);
    tokens_held_ = 0;
    return scheduler_.flush();
  }

  [[nodiscard]] std::int64_t tokens_held() const { return tokens_held_; }

 private:
  static std::int64_t tokens_of(const Call& call) {
    std::int64_t tokens = 0;
    for (const Row& row : call.rows) {
      for (const Piece& piece : row.pieces) tokens += piece.length;
    }
    return tokens;
  }

  void pack_window(bool is_last) {
    std::vector<Candidate> candidates = std::move(set_aside_);
    set_aside_.clear();
    candidates.insert(candidates.end(), window_.begin(), window_.end());
    for (const Candidate& candidate : window_) arrived_tokens_ += candidate.left;
    window_.clear();
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
        const Document& document = cut_documents_.at(piece.document);
        longest_first.push({piece_at(document, piece.document, piece.offset + piece.length, options_),
                            candidate.left - piece.length, *row});
      } else if (piece.continues) {
        cut_documents_.erase(piece.document);
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

  /// Keeps the rows with the most room open and hands the others on. A row is kept for one window only, or for as many
  /// as hold the tokens of a row: where no short documents come, it would stay for ever, and its documents with it.
  void seal_all_but(std::size_t kept) {
    if (arrived_tokens_ >= options_.pack_length) {
      for (auto row = open_.begin(); row != open_.end();) {
        const auto next = std::next(row);
        if (row->number <= opened_before_) sealed_.push_back(std::move(open_.extract(row).value().row));
        row = next;
      }
      opened_before_ = opened_;
      arrived_tokens_ = 0;
    }
    while (open_.size() > kept) sealed_.push_back(std::move(open_.extract(open_.begin()).value().row));

    for (Row& row : leaving_order(hold_back(), random_)) scheduler_.add(std::move(row));
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

  PackOptions options_;
  SplitMix64 random_;
  std::int64_t arrived_ = 0;                                  ///< documents so far
  std::vector<Candidate> window_;                             ///< of documents not looked at yet
  std::unordered_map<std::int64_t, Document> cut_documents_;  ///< those longer than the cut with pieces to place
  std::int64_t tokens_held_ = 0;
  std::set<OpenRow, LessRoom> open_;
  RoomByRow room_;                       ///< of open_, by number
  std::vector<Candidate> set_aside_;     ///< for the next window
  std::int64_t rows_worth_opening_ = 0;  ///< number of the last one
  std::vector<Row> sealed_;              ///< in this window, or held back
  std::int64_t opened_ = 0;              ///< rows so far
  std::int64_t opened_before_ = 0;       ///< rows, when old ones were last sealed
  std::int64_t arrived_tokens_ = 0;      ///< since then
  CallScheduler scheduler_;
};

LocalGreedyStream::LocalGreedyStream(const PackOptions& options) : state_(std::make_unique<State>(options)) {}
LocalGreedyStream::~LocalGreedyStream() = default;
LocalGreedyStream::LocalGreedyStream(LocalGreedyStream&&) noexcept = default;
LocalGreedyStream& LocalGreedyStream::operator=(LocalGreedyStream&&) noexcept = default;

std::vector<Call> LocalGreedyStream::add(Document document) { return state_->add(std::move(document)); }
std::vector<Call> LocalGreedyStream::finish() { return state_->finish(); }
std::int64_t LocalGreedyStream::tokens_held() const { return state_->tokens_held(); }

PackPlan plan_local_greedy(std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan = begin_plan("local-greedy", documents, options);
  LocalGreedyStream stream(options);
  const auto append = [&](std::vector<Call> calls) {
    std::move(calls.begin(), calls.end(), std::back_inserter(plan.calls));
  };
  for (const Document& document : documents) append(stream.add(document));
  append(stream.finish());
  return plan;
}

}  // namespace packjit
