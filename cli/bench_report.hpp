#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "tuning/batch_shape.hpp"
#include "tuning/limits.hpp"
#include "tuning/measure.hpp"
#include "tuning/operator_choices.hpp"

namespace packjit {

/// What all rows of a report share.
struct BenchHeader {
  std::string date, command, nvrtc;
  DeviceInfo gpu;
  double bytes_per_second = 0;  ///< of a copy
  BatchShape shape;
  OperatorChoices choices;
  int repeats = 0;
  CacheState cache = CacheState::rotating;
};
/// The fields are those of docs/bench_ops.md.
[[nodiscard]] nlohmann::json json_of(const BenchHeader& header);
[[nodiscard]] std::string text_of(const BenchHeader& header);

/// One line of the report: one operator, or the forward and the backward together, on the lengths in one way.
struct BenchRow {
  std::string name;     ///< "ssm_pack_fwd", "ssm_pack_fwd+bwd"
  std::string variant;  ///< "stored"; empty where there is no choice
  std::string way;      ///< "packed", "padded", "one_by_one"
  std::string skipped;  ///< why nothing was measured; then only the fields above count
  Times times;
  int buffer_sets = 1;
  std::int64_t launched_calls = 1;  ///< operator calls that are one repetition of the work
  std::int64_t real_tokens = 0;
  std::int64_t computed_tokens = 0;  ///< with the padding that is computed
  std::int64_t dim = 0;
  Work work;
  Limits limits;
  std::string config;
  std::int64_t workspace_bytes = 0;
  std::optional<std::int64_t> saved_bytes;  ///< of a backward
};

[[nodiscard]] nlohmann::json json_of(const BenchRow& row);

/// What another program measured on the same lengths, as scripts/bench_peers.py writes it.
struct PeerRow {
  std::string name, peer, way, skipped;
  double median_ms = 0, p10_ms = 0, p90_ms = 0, giga_elements_per_second = 0;
};
/// Throws std::runtime_error where the document is not what scripts/bench_peers.py writes.
[[nodiscard]] std::vector<PeerRow> peer_rows(const nlohmann::json& report);

/// At most 110 columns wide.
[[nodiscard]] std::string bench_table(std::span<const BenchRow> rows, std::span<const PeerRow> peers);

}  // namespace packjit
