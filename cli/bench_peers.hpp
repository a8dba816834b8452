#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace packjit {

/// Runs scripts/bench_peers.py, which the program carries with it, with a Python that has the official kernels, on the
/// lengths and sizes of `report`. Returns what it measured. Throws EnvironmentError with what the script said where it
/// ends with status 3 or `python` cannot be run, std::runtime_error where it fails otherwise.
[[nodiscard]] nlohmann::json run_peers(const std::string& python, const nlohmann::json& report);

/// The text of the script.
[[nodiscard]] std::string_view peers_script();

}  // namespace packjit
