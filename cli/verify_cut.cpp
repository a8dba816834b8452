#include "cli/verify_cut.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "checking/checks.hpp"
#include "checking/successive_calls.hpp"
#include "cli/terminal.hpp"
#include "packing/cutting.hpp"

namespace packjit {
namespace {

using checking::Case;
using checking::PieceBits;

/// The longest document, and as many others in the file's order as fill the rows of the calls that it needs.
struct Chosen {
  std::vector<Document> documents;
  std::size_t number = 0;  ///< of the longest in the file
  std::int64_t pieces = 0;
};

Chosen chosen_of(const std::vector<Document>& documents, const PackOptions& options) {
  const auto longest = std::ranges::max_element(documents, {}, &Document::length);
  Chosen chosen{{*longest}, static_cast<std::size_t>(longest - documents.begin()), 0};
  if (longest->length <= options.cut) {
    throw std::invalid_argument(fmt::format(
        "packjit verify: no document is longer than --cut {}: the longest, in line {}, has {} tokens; give a smaller "
        "--cut",
        options.cut, chosen.number + 1, longest->length));
  }
  chosen.pieces = count_pieces(*longest, options, kMaximumPieces);
  std::int64_t room = chosen.pieces * options.rows_per_call * options.pack_length - longest->length;
  for (const Document& document : documents) {
    if (&document == &*longest || document.length > room) continue;
    room -= document.length;
    chosen.documents.push_back(document);
  }
  return chosen;
}

/// All documents side by side in one row, none of them cut.
Case uncut_case(const std::vector<Document>& documents, Operator op, Dtype dtype, std::int64_t dim) {
  Case c;
  c.name = fmt::format("{} documents, the longest of {}", documents.size(), documents.front().length);
  c.op = op;
  c.dtype = dtype;
  c.dim = dim;
  // The kernels of the calls have both, so that the uncut run is theirs too; and the first piece takes states as well.
  c.initial_states = c.final_states = true;
  c.rows.emplace_back();
  for (const Document& document : documents) c.rows.front().push_back({document.length, false});
  return c;
}

std::string lengths_of_pieces(const Document& document, const PackOptions& options) {
  std::string text;
  for (std::int64_t offset = 0; offset < document.length;) {
    const std::int64_t end = piece_end(document, offset, options);
    text += fmt::format("{}{}", text.empty() ? "" : " ", end - offset);
    offset = end;
  }
  return text;
}

std::string table_of(const std::vector<PieceBits>& bits) {
  std::string text = fmt::format("{:<16} {:<5} {:<8} {:<11} {:>7} {:>10} {:>13}\n", "operator", "dtype", "tensor",
                                 "config", "pieces", "same bits", "must have them");
  for (const PieceBits& row : bits) {
    text +=
        fmt::format("{:<16} {:<5} {:<8} {:<11} {:>7} {:>10} {:>13}{}\n", name_of(row.op), name_of(row.dtype),
                    row.tensor, row.config, row.pieces, row.equal, row.must_be_equal, row.wrong > 0 ? "   FAILED" : "");
  }
  text +=
      "A scan goes from token to token whatever the tiles, and hands over what it would go on with: every piece has "
      "the\n"
      "bits of the uncut run. With segments on, states inside a long sequence come from products over whole segments,\n"
      "which the calls form elsewhere: only first pieces (forward) and documents that are whole must have them. A\n"
      "convolution's dx is compared without the last tokens before a cut, which get the next piece's share as one "
      "sum.\n";
  return text;
}

nlohmann::json json_of(const std::vector<PieceBits>& bits) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PieceBits& row : bits) {
    rows.push_back({{"operator", name_of(row.op)},
                    {"dtype", name_of(row.dtype)},
                    {"tensor", row.tensor},
                    {"config", row.config},
                    {"pieces", row.pieces},
                    {"same_bits", row.equal},
                    {"must_have_same_bits", row.must_be_equal},
                    {"wrong", row.wrong}});
  }
  return rows;
}

}  // namespace

CutVerification verify_cut(Device& device, const std::vector<Document>& documents, const PackOptions& options,
                           std::int64_t dim) {
  const PackOptions checked = checked_options(options);
  const Chosen chosen = chosen_of(documents, checked);
  const PackPlan plan = plan_local_greedy(chosen.documents, checked);
  const auto handovers = state_handovers(plan, SlotNumbering::position_indices);
  CutVerification verification;
  std::vector<PieceBits> bits;
  constexpr Dtype kDtypes[] = {Dtype::fp32, Dtype::bf16};
  Progress progress("verify", static_cast<std::int64_t>(std::size(kOperators) * std::size(kDtypes)));
  for (const Operator op : kOperators) {
    for (const Dtype dtype : kDtypes) {
      progress.set_label(fmt::format("{} {} in {} calls", name_of(op), name_of(dtype), plan.calls.size()));
      const Case whole = uncut_case(chosen.documents, op, dtype, dim);
      const checking::CaseRun run = checking::first_run(device, whole);
      const checking::Reference reference = checking::compute_reference(whole, run.inputs);
      const checking::SuccessiveCalls calls = checking::calls_of(whole, plan);
      verification.report.add(checking::check_against_oracle(run, reference));
      verification.report.add(checking::check_successive_calls(device, run, reference, calls));
      const std::vector<PieceBits> more = checking::piece_bits(device, run, calls);
      verification.report.add(checking::results_of(run, more));
      bits.insert(bits.end(), more.begin(), more.end());
      progress.advance();
    }
  }
  const Document& longest = chosen.documents.front();
  const std::string lengths = lengths_of_pieces(longest, checked);
  verification.text = fmt::format(
      "The document in line {} with {} tokens, in {} pieces ({}), and {} others beside it:\n{} calls, {} hand-overs of "
      "states, gradients back through all of them.\n\n{}",
      chosen.number + 1, longest.length, chosen.pieces, lengths, chosen.documents.size() - 1, plan.calls.size(),
      handovers.size(), table_of(bits));
  verification.document = {{"line", chosen.number + 1},
                           {"tokens", longest.length},
                           {"pieces", chosen.pieces},
                           {"documents", chosen.documents.size()},
                           {"calls", plan.calls.size()},
                           {"handovers", handovers.size()},
                           {"pack_length", plan.options.pack_length},
                           {"cut", plan.options.cut},
                           {"bits", json_of(bits)}};
  return verification;
}

}  // namespace packjit
