#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// Local greedy for documents that come one by one: calls leave as soon as their rows are sealed. Packs as
/// plan_local_greedy does, to the same calls. What it holds is bounded by the window, whatever the number of documents:
/// at most two windows of documents, or as many as hold the tokens of two rows, their rows, the open rows, and the rows
/// that those continue.
///
/// Not for several threads at once. After an exception the object can only be destroyed.
class LocalGreedyStream {
 public:
  /// Throws std::invalid_argument for an option that is out of range.
  explicit LocalGreedyStream(const PackOptions& options);
  ~LocalGreedyStream();
  LocalGreedyStream(LocalGreedyStream&&) noexcept;
  LocalGreedyStream& operator=(LocalGreedyStream&&) noexcept;

  /// Takes the next document (the first one is number 0) and returns the calls that are complete by now, mostly none.
  /// Throws std::invalid_argument for a document that is out of range.
  [[nodiscard]] std::vector<Call> add(Document document);
  /// There are no more documents: returns the calls that are left. The object is then spent.
  [[nodiscard]] std::vector<Call> finish();

  /// Tokens that were added and have not left yet.
  [[nodiscard]] std::int64_t tokens_held() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace packjit
