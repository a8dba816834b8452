#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tuning/trial.hpp"

namespace packjit {

// What WorkerBench and its worker hand to each other, as JSON. Readers throw std::invalid_argument where something is
// missing or of another type.
[[nodiscard]] nlohmann::json json_of(const TuningTarget& target);
[[nodiscard]] TuningTarget target_of(const nlohmann::json& json);
[[nodiscard]] nlohmann::json json_of(const Trial& trial);
[[nodiscard]] Trial trial_of(const nlohmann::json& json);
[[nodiscard]] nlohmann::json json_of(const Spec& spec);
[[nodiscard]] Spec spec_of(const nlohmann::json& json);
[[nodiscard]] nlohmann::json json_of(std::span<const Config> configs);
[[nodiscard]] std::vector<Config> configs_of(const nlohmann::json& json, Operator op);

}  // namespace packjit
