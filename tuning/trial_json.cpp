#include "tuning/trial_json.hpp"
#include "database/record_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>

namespace packjit {
namespace {

/// Sets what "dtype=bf16 d_state=16" says.
void read_values(FieldValues& values, const std::string& text) {
  std::istringstream settings(text);
  for (std::string setting; settings >> setting;) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) throw std::invalid_argument(fmt::format("'{}' is no key=value", setting));
    values.set_text(setting.substr(0, equals), setting.substr(equals + 1));
  }
}

/// What `read` gives; the library's own exceptions are of another kind.
template <typename Read>
auto reading(const char* what, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(fmt::format("reading {}: {}", what, reason_of(error)));
  }
}

nlohmann::json json_of(const NumericalCheck& check) { return {{"method", check.method}, {"error", check.error}}; }

}  // namespace

nlohmann::json json_of(const Spec& spec) { return {{"op", name_of(spec.op)}, {"values", spec.values.text()}}; }

Spec spec_of(const nlohmann::json& json) {
  return reading("a Spec", [&] {
    Spec spec(operator_named(json.at("op").get<std::string>()));
    read_values(spec.values, json.at("values").get<std::string>());
    return spec;
  });
}

nlohmann::json json_of(std::span<const Config> configs) {
  nlohmann::json list = nlohmann::json::array();
  for (const Config& config : configs) list.push_back(config.values.text());
  return list;
}

std::vector<Config> configs_of(const nlohmann::json& json, Operator op) {
  return reading("Configs", [&] {
    std::vector<Config> configs;
    for (const nlohmann::json& text : json) {
      read_values(configs.emplace_back(op).values, text.get<std::string>());
    }
    return configs;
  });
}

nlohmann::json json_of(const TuningTarget& target) {
  return {{"spec", json_of(target.spec)},
          {"bucket", {target.bucket.dim, target.bucket.tokens, target.bucket.spread, target.bucket.mean_length}},
          {"work", {target.work.tokens, target.work.sequences, target.work.dim, target.work.longest}},
          {"name", target.batch.name},
          {"seqlen", target.batch.seqlen},
          {"rows", target.batch.rows}};
}

TuningTarget target_of(const nlohmann::json& json) {
  return reading("a target", [&] {
    const auto bucket = json.at("bucket").get<std::array<std::int64_t, 4>>();
    const auto work = json.at("work").get<std::array<std::int64_t, 4>>();
    return TuningTarget{spec_of(json.at("spec")),
                        {bucket[0], bucket[1], bucket[2], bucket[3]},
                        {work[0], work[1], work[2], work[3]},
                        {json.at("name"), json.at("seqlen"), json.at("rows")}};
  });
}

nlohmann::json json_of(const Trial& trial) {
  return {{"failure", trial.failure}, {"lost_worker", trial.lost_worker}, {"check", json_of(trial.check)},
          {"rounds", trial.rounds},   {"lowest_mhz", trial.lowest_mhz},   {"highest_mhz", trial.highest_mhz}};
}

Trial trial_of(const nlohmann::json& json) {
  return reading("a trial", [&] {
    const nlohmann::json& check = json.at("check");
    return Trial{json.at("failure"), json.at("lost_worker"), {check.at("method"), check.at("error")},
                 json.at("rounds"),  json.at("lowest_mhz"),  json.at("highest_mhz")};
  });
}

}  // namespace packjit
