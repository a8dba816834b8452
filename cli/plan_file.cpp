#include "cli/plan_file.hpp"

#include <fmt/format.h>

#include <iterator>
#include <unordered_map>

#include "packing/boundaries.hpp"

namespace packjit {
namespace {

/// Written by hand, not through a tree of values: a plan may hold millions of pieces. No string in it needs escaping.
class PlanWriter {
 public:
  PlanWriter(const PackPlan& plan, const PlanPlace& place)
      : plan_(plan), place_(place), handovers_(state_handovers(plan, SlotNumbering::position_indices)) {
    for (const Call& call : plan.calls) {
      for (const Row& row : call.rows) {
        for (const Piece& piece : row.pieces) {
          if (piece.continues && !piece.more) lengths_of_cut_[piece.document] = piece.offset + piece.length;
        }
      }
    }
  }

  std::string write() {
    const PackOptions& options = plan_.options;
    append("{{\n  \"format\": \"packjit-plan\",\n  \"version\": {},\n  \"minor_version\": {},\n  \"method\": \"{}\",\n",
           kPlanFormatVersion, kPlanFormatMinorVersion, plan_.method);
    append("  \"pack_length\": {},\n  \"cut\": {},\n  \"cut_slack\": {},\n  \"min_piece\": {},\n", options.pack_length,
           options.cut, options.cut_slack, options.min_piece);
    append("  \"rows_per_call\": {},\n", options.rows_per_call);
    append("  \"window\": {},\n  \"open_packs\": {},\n  \"seed\": {},\n", options.window, options.open_packs,
           options.seed);
    if (place_.epoch) append("  \"epoch\": {},\n", *place_.epoch);
    append("  \"ranks\": {},\n  \"rank\": {},\n", place_.ranks, place_.rank);
    append("  \"documents\": {},\n  \"tokens\": {},\n  \"calls\": [", plan_.documents, plan_.tokens);
    const char* separator = "\n";
    for (const Call& call : plan_.calls) {
      append("{}    {{\"rows\": [", separator);
      write_rows(call);
      append("]}}");
      separator = ",\n";
    }
    append("\n  ]\n}}\n");
    return std::move(text_);
  }

 private:
  template <typename... Values>
  void append(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }

  void write_rows(const Call& call) {
    const char* separator = "\n";
    for (const Row& row : call.rows) {
      append("{}      {{\"pieces\": [", separator);
      const char* comma = "";
      for (const Piece& piece : row.pieces) {
        append("{}{{\"document\": {}, \"offset\": {}, \"length\": {}, \"continues\": {}, \"more\": {}", comma,
               piece.document, piece.offset, piece.length, piece.continues, piece.more);
        if (piece.continues || piece.more) append(", \"document_length\": {}", lengths_of_cut_.at(piece.document));
        if (piece.continues) {
          const StateSlot& from = handovers_[next_handover_++].from;
          append(", \"state_from\": {{\"call\": {}, \"slot\": {}}}", from.call, from.slot);
        }
        append("}}");
        comma = ", ";
      }
      append("]}}");
      separator = ",\n";
    }
  }

  const PackPlan& plan_;
  PlanPlace place_;
  std::unordered_map<std::int64_t, std::int64_t> lengths_of_cut_;  ///< of the documents in several pieces
  std::vector<StateHandover> handovers_;  ///< one for each piece that continues, in the order of the plan
  std::size_t next_handover_ = 0;
  std::string text_;
};

}  // namespace

std::string plan_json(const PackPlan& plan, const PlanPlace& place) { return PlanWriter(plan, place).write(); }

}  // namespace packjit
