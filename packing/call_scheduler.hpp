#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// Gathers finished rows into calls, such that the pieces of a document come in calls of increasing number.
///
/// A row is ready when every piece it continues lies in a call already made. Rows that continue something go first, the
/// most recent first, so that the pieces of a document come in neighbouring calls; the others keep the order in which
/// they were added. A call is made when it can be made full; `flush` makes the last, smaller ones.
///
/// Holds only rows that are in no call yet, and a few numbers of documents that are not complete.
///
/// The rows added must be free of circular waits: there must be an order of all rows in which every piece comes in a
/// later row than the piece before it.
class CallScheduler {
 public:
  explicit CallScheduler(std::int64_t rows_per_call);

  void add(Row row);
  /// The calls made since the last time.
  [[nodiscard]] std::vector<Call> take_calls();
  /// Makes calls until every row added is in one, and returns those not yet taken.
  [[nodiscard]] std::vector<Call> flush();

 private:
  struct Pending {
    Row row;
    std::int64_t waits_for = 0;  ///< pieces that this row continues and that are in no call yet
    bool continues = false;
  };
  using PieceStart = std::pair<std::int64_t, std::int64_t>;  ///< document, offset

  void release(std::size_t number);
  void make_call();

  std::size_t rows_per_call_;
  std::map<std::int64_t, std::int64_t> in_calls_until_;   ///< tokens in calls already made, of documents that go on
  std::map<std::size_t, Pending> pending_;                ///< rows in no call, by number of arrival
  std::map<PieceStart, std::size_t> waiting_;             ///< the row that waits for the token before this one
  std::set<std::pair<std::int64_t, std::size_t>> ready_;  ///< urgency (small is urgent), number of arrival
  std::size_t next_number_ = 0;
  std::int64_t made_ = 0;    ///< calls, taken ones among them
  std::vector<Call> calls_;  ///< not yet taken
};

}  // namespace packjit
