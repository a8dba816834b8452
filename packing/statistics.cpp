#include "packing/statistics.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "packing/boundaries.hpp"

namespace packjit {
namespace {

void measure_drift(PackStatistics& statistics, const PackPlan& plan) {
  std::int64_t place = 0;
  double sum = 0;
  for (const Call& call : plan.calls) {
    for (const Row& row : call.rows) {
      for (const Piece& piece : row.pieces) {
        if (piece.continues) continue;
        const std::int64_t drift = std::abs(place++ - piece.document);
        sum += static_cast<double>(drift);
        statistics.largest_order_drift = std::max(statistics.largest_order_drift, drift);
      }
    }
  }
  if (place > 0) statistics.mean_order_drift = sum / static_cast<double>(place);
}

void measure_handovers(PackStatistics& statistics, const PackPlan& plan) {
  double sum = 0;
  const auto handovers = state_handovers(plan, SlotNumbering::position_indices);
  for (const StateHandover& handover : handovers) {
    const std::int64_t distance = handover.to.call - handover.from.call;
    sum += static_cast<double>(distance);
    statistics.largest_handover_distance = std::max(statistics.largest_handover_distance, distance);
  }
  if (!handovers.empty()) statistics.mean_handover_distance = sum / static_cast<double>(handovers.size());
}

}  // namespace

PackStatistics statistics_of(const PackPlan& plan, std::span<const Document> documents) {
  if (plan.documents != static_cast<std::int64_t>(documents.size())) {
    throw std::invalid_argument("packing: the plan was made of " + std::to_string(plan.documents) + " documents, but " +
                                std::to_string(documents.size()) + " were given");
  }
  const std::int64_t pack_length = plan.options.pack_length;
  PackStatistics statistics;
  statistics.documents = plan.documents;
  statistics.calls = static_cast<std::int64_t>(plan.calls.size());
  for (const Call& call : plan.calls) {
    statistics.rows += static_cast<std::int64_t>(call.rows.size());
    for (const Row& row : call.rows) {
      statistics.pieces += static_cast<std::int64_t>(row.pieces.size());
      for (const Piece& piece : row.pieces) {
        statistics.tokens += piece.length;
        if (piece.more && !piece.continues) ++statistics.documents_cut;
      }
    }
  }
  for (const Document& document : documents) statistics.longest = std::max(statistics.longest, document.length);
  statistics.padded_to_pack_length = statistics.pieces * pack_length;
  statistics.padded_to_longest = statistics.longest * statistics.documents;
  statistics.padded_tokens = statistics.rows * pack_length;
  if (statistics.padded_tokens > 0) {
    statistics.fill_rate = static_cast<double>(statistics.tokens) / static_cast<double>(statistics.padded_tokens);
  }
  measure_drift(statistics, plan);
  measure_handovers(statistics, plan);
  return statistics;
}

}  // namespace packjit
