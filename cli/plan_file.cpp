#include "cli/plan_file.hpp"

#include <fmt/format.h>

#include <iterator>

#include "packing/boundaries.hpp"

namespace packjit {
namespace {

/// Written by hand, not through a tree of values: a plan may hold millions of pieces. No string in it needs escaping.
class PlanWriter {
 public:
  explicit PlanWriter(const PackPlan& plan)
      : plan_(plan), handovers_(state_handovers(plan, SlotNumbering::position_indices)) {}

  std::string write() {
    const PackOptions& options = plan_.options;
    append("{{\n  \"format\": \"packjit-plan\",\n  \"version\": {},\n  \"method\": \"{}\",\n", kPlanFormatVersion,
           plan_.method);
    append("  \"pack_length\": {},\n  \"cut\": {},\n  \"rows_per_call\": {},\n", options.pack_length, options.cut,
           options.rows_per_call);
    append("  \"window\": {},\n  \"open_packs\": {},\n  \"seed\": {},\n", options.window, options.open_packs,
           options.seed);
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
  std::vector<StateHandover> handovers_;  ///< one for each piece that continues, in the order of the plan
  std::size_t next_handover_ = 0;
  std::string text_;
};

}  // namespace

std::string plan_json(const PackPlan& plan) { return PlanWriter(plan).write(); }

}  // namespace packjit
