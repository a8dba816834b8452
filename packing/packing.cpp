#include "packing/packing.hpp"

#include <stdexcept>

#include "packing/cutting.hpp"

namespace packjit {
namespace {

constexpr PackMethod kMethods[] = {
    {"next-fit", plan_next_fit, "arrival order; a row is sealed when the next document does not fit"},
    {"local-greedy", plan_local_greedy, "sorts a window of documents by length and fills the row that fits best"},
    {"ffd", plan_first_fit_decreasing, "sorts all documents; each goes into the first row that takes it"},
    {"bfd", plan_best_fit_decreasing, "sorts all documents; each goes into the row it fills best"},
    {"length-groups", plan_length_groups, "documents of similar length share rows and calls"},
    {"balanced", plan_balanced, "full calls, whose rows hold the same number of tokens and similar longest documents"},
};

void check_option(std::string_view name, std::int64_t value, std::int64_t minimum, std::int64_t maximum,
                  std::string_view why = "") {
  if (value >= minimum && value <= maximum) return;
  throw std::invalid_argument("packing: " + std::string(name) + " must be from " + std::to_string(minimum) + " to " +
                              std::to_string(maximum) + std::string(why) + ", found " + std::to_string(value));
}

}  // namespace

std::span<const PackMethod> pack_methods() { return kMethods; }

const PackMethod& pack_method_named(std::string_view name) {
  std::string known;
  for (const PackMethod& method : kMethods) {
    if (method.name == name) return method;
    known += (known.empty() ? "" : ", ") + std::string(method.name);
  }
  throw std::invalid_argument("packing: there is no method '" + std::string(name) + "'; the methods are " + known);
}

PackOptions checked_options(const PackOptions& options) {
  PackOptions checked = options;
  check_option("pack length", options.pack_length, 1, kMaximumLength);
  if (options.cut == 0) checked.cut = options.pack_length;
  check_option("cut", checked.cut, 1, options.pack_length, " (the pack length: a piece must fit into a row)");
  check_option("cut slack", options.cut_slack, 0, kMaximumLength);
  check_option("minimum piece", options.min_piece, 1, (checked.cut + 1) / 2,
               " (half the cut: a document just above the cut becomes two pieces)");
  check_option("rows per call", options.rows_per_call, 1, kMaximumLength);
  check_option("window", options.window, 1, kMaximumLength);
  check_option("open packs", options.open_packs, 0, kMaximumLength);
  return checked;
}

void check_document(const Document& document, std::int64_t index) {
  const std::string name = "packing: document " + std::to_string(index);
  if (document.length < 1 || document.length > kMaximumLength) {
    throw std::invalid_argument(name + ": length must be from 1 to " + std::to_string(kMaximumLength) + ", found " +
                                std::to_string(document.length));
  }
  std::int64_t last = 0;
  for (const std::int64_t point : document.breaks) {
    if (point <= last || point >= document.length) {
      throw std::invalid_argument(name + ": breaks must increase and lie inside (0, " +
                                  std::to_string(document.length) + "), found " + std::to_string(point) + " after " +
                                  std::to_string(last));
    }
    last = point;
  }
}

void rename_documents(PackPlan& plan, const std::vector<std::int64_t>& names) {
  for (Call& call : plan.calls) {
    for (Row& row : call.rows) {
      for (Piece& piece : row.pieces) piece.document = names.at(static_cast<std::size_t>(piece.document));
    }
  }
}

PackPlan begin_plan(std::string_view method, std::span<const Document> documents, const PackOptions& options) {
  PackPlan plan;
  plan.method = method;
  plan.options = checked_options(options);
  if (documents.empty()) throw std::invalid_argument("packing: there are no documents to pack");
  std::int64_t pieces = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    check_document(documents[i], static_cast<std::int64_t>(i));
    plan.tokens += documents[i].length;
    pieces += count_pieces(documents[i], plan.options, kMaximumPieces);
    if (pieces > kMaximumPieces) {
      throw std::invalid_argument("packing: the plan would hold more than " + std::to_string(kMaximumPieces) +
                                  " pieces by document " + std::to_string(i) +
                                  "; raise the cut, or pack fewer documents at a time");
    }
  }
  plan.documents = static_cast<std::int64_t>(documents.size());
  return plan;
}

}  // namespace packjit
