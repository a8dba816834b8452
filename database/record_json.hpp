#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "database/entry.hpp"

namespace packjit {

// Entries, failed candidates and GPUs as JSON, fields in the order of docs/database_format.md. Reading throws
// std::invalid_argument that names the place and what was found there.

/// Every field with its label, or its number where it has none.
[[nodiscard]] nlohmann::ordered_json json_of(const FieldValues& values);
[[nodiscard]] nlohmann::ordered_json json_of(const GpuProperties& gpu);
[[nodiscard]] nlohmann::ordered_json json_of(const Entry& entry);  ///< without its GPU, which is the document's
[[nodiscard]] nlohmann::ordered_json json_of(const FailedCandidate& candidate);

/// Fields that are not known go to `unknown`.
[[nodiscard]] GpuProperties read_gpu(const nlohmann::json& json, const std::string& place, nlohmann::json& unknown);
/// Both return why the record cannot be used (a field or a value of its Spec or Config that there is not, a pair that
/// does not fit, no passed check), empty where it can. `record` is then complete, its GPU apart.
[[nodiscard]] std::string read_record(const nlohmann::json& json, const std::string& place, Entry& record);
[[nodiscard]] std::string read_record(const nlohmann::json& json, const std::string& place, FailedCandidate& record);

/// Why an entry must not be used anywhere; empty where it may.
[[nodiscard]] std::string why_unusable(const Entry& entry);
[[nodiscard]] std::string why_unusable(const FailedCandidate& candidate);

/// Adds what `unknown` has and `json` has not, in objects inside objects too.
void add_unknown(nlohmann::ordered_json& json, const nlohmann::json& unknown);

/// Text of any bytes, as paths may have: what is no UTF-8 is replaced.
template <typename Json>
[[nodiscard]] std::string dump_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// "null" for a JSON null, and so on, long values cut: for messages.
[[nodiscard]] std::string describe(const nlohmann::json& json);
/// What the JSON library found wrong, and where, without its label: "parse error at line 1, column 2: ...".
[[nodiscard]] std::string reason_of(const nlohmann::json::exception& error);

}  // namespace packjit
