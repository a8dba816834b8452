#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "checking/case.hpp"

namespace packjit::checking {

/// Reads a case from its JSON form (docs/case_format.md). Throws std::invalid_argument that names the field, what was
/// found and what was expected; unknown fields are refused.
[[nodiscard]] Case parse_case(std::string_view text);
[[nodiscard]] nlohmann::json case_json(const Case& check_case);

}  // namespace packjit::checking
