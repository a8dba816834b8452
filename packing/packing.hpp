#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// From document lengths to rows of a fixed number of tokens, grouped into calls. Pure: no files, no clock, no state
/// outside the arguments; every function may be used by several threads at once. The same arguments give the same
/// plan on every machine.
namespace packjit {

/// The largest length, in tokens, of a document and of a row: positions are 32-bit.
inline constexpr std::int64_t kMaximumLength = 2147483647;
/// The most pieces that a plan may hold; a plan of that size takes a few gigabytes.
inline constexpr std::int64_t kMaximumPieces = std::int64_t{1} << 26;

/// What the packer knows of a document.
struct Document {
  std::int64_t length = 0;           ///< tokens, 1 to kMaximumLength
  std::vector<std::int64_t> breaks;  ///< where it may be cut (a piece may begin here); increasing, inside (0, length)
};

/// Consecutive tokens of one document, lying in one row.
struct Piece {
  std::int64_t document = 0;  ///< index into the list of documents
  std::int64_t offset = 0;    ///< first token, counted inside the document
  std::int64_t length = 0;    ///< tokens, at least 1
  bool continues = false;     ///< takes over the final state of the document's piece before it (offset > 0)
  bool more = false;          ///< hands its final state on to the document's next piece
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// One row: its pieces from left to right without gaps; the rest of the row is padding.
struct Row {
  std::vector<Piece> pieces;
  friend bool operator==(const Row&, const Row&) = default;
};

/// One call of the operators (a micro-batch). Its rows run side by side, so it holds at most one piece of a document.
struct Call {
  std::vector<Row> rows;  ///< 1 to rows_per_call; none only where ranks.hpp says so
  friend bool operator==(const Call&, const Call&) = default;
};

struct PackOptions {
  std::int64_t pack_length = 0;  ///< tokens of a row, 1 to kMaximumLength
  std::int64_t cut = 0;          ///< documents longer than this are cut; 1 to pack_length, 0 stands for pack_length
  /// A document is cut at a break only where the break lies within the last `cut_slack` tokens before the limit;
  /// further back it would leave too short a piece, and the cut is at the limit.
  std::int64_t cut_slack = kMaximumLength;
  std::int64_t min_piece = 1;  ///< tokens of a piece of a cut document, at least; 1 to (cut + 1) / 2
  std::int64_t rows_per_call = 1;
  std::int64_t window = 256;     ///< local-greedy: documents that are sorted together
  std::int64_t open_packs = 16;  ///< local-greedy: rows that stay open from one window to the next, at most
  std::uint64_t seed = 0;        ///< order of the rows that are sealed together; next-fit has none to choose
  friend bool operator==(const PackOptions&, const PackOptions&) = default;
};

/// Every token of every document is in exactly one piece. The pieces of a document lie in calls of increasing number.
struct PackPlan {
  std::string method;
  PackOptions options;  ///< as used: `cut` is never 0
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::vector<Call> calls;
  friend bool operator==(const PackPlan&, const PackPlan&) = default;
};

/// Arrival order: a row is sealed when the next document does not fit. Looks at one document at a time. The second
/// piece of a cut document waits for the next row while later documents may still enter this one.
[[nodiscard]] PackPlan plan_next_fit(std::span<const Document> documents, const PackOptions& options);

/// Sorts `window` documents by length, longest first, and puts each into the row it fills best; a piece that others
/// follow goes into the first row that takes it, so that those have rows to follow into. At the end of a window the
/// rows with the most room, `open_packs` at most, stay open for the next one (once, or for as many windows as hold the
/// tokens of a row); the others are sealed and leave in an order drawn from `seed`, so that long documents do not
/// always come first. Where the rest of a document would leave rows nearly empty it waits for the documents of the next
/// window; `window` documents at most wait.
[[nodiscard]] PackPlan plan_local_greedy(std::span<const Document> documents, const PackOptions& options);

/// All documents, longest first, each into the first row that takes it; the rows in an order drawn from `seed`.
[[nodiscard]] PackPlan plan_first_fit_decreasing(std::span<const Document> documents, const PackOptions& options);

/// The same into the row it fills best. With cut documents: a piece that others follow goes into the first row.
[[nodiscard]] PackPlan plan_best_fit_decreasing(std::span<const Document> documents, const PackOptions& options);

/// Documents above 2^(k-1) and up to 2^k tokens are packed apart from others, best fit decreasing; those that are cut
/// are in the group of the cut. A call has rows of one group; the calls of the groups are mixed by `seed`, but those
/// that hand states over to each other follow each other.
[[nodiscard]] PackPlan plan_length_groups(std::span<const Document> documents, const PackOptions& options);

/// The rows of 256 calls at a time, and as many documents in order of arrival as fill them; each, longest first, goes
/// into the emptiest row. So the rows of a call have nearly equal tokens, and longest sequences of nearly one length.
/// Documents that do not fit are left to the next 256 calls; at the end further calls are opened for them. The calls
/// come in an order drawn from `seed`; those between which a document goes on stay together.
[[nodiscard]] PackPlan plan_balanced(std::span<const Document> documents, const PackOptions& options);

struct PackMethod {
  std::string_view name;  ///< as on the command line: "local-greedy"
  PackPlan (*plan)(std::span<const Document>, const PackOptions&);
  std::string_view meaning;  ///< one line of help
};
[[nodiscard]] std::span<const PackMethod> pack_methods();
/// Throws std::invalid_argument that lists the methods there are.
[[nodiscard]] const PackMethod& pack_method_named(std::string_view name);

/// The options as used: `cut` is no longer 0. Throws std::invalid_argument for one that is out of range.
[[nodiscard]] PackOptions checked_options(const PackOptions& options);
/// Throws std::invalid_argument that names the document by `index`, where its length or a break is out of range.
void check_document(const Document& document, std::int64_t index);

/// Document i of the plan becomes names[i]; throws std::out_of_range where there is none.
void rename_documents(PackPlan& plan, const std::vector<std::int64_t>& names);

/// What every method does first: throws std::invalid_argument for an option or a document out of range, for an empty
/// list and for a plan of more than kMaximumPieces; returns an empty plan with options, documents and tokens filled in.
[[nodiscard]] PackPlan begin_plan(std::string_view method, std::span<const Document> documents,
                                  const PackOptions& options);

}  // namespace packjit
