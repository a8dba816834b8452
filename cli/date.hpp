#pragma once

#include <string>

namespace packjit {

/// Of today in UTC, "YYYY-MM-DD".
[[nodiscard]] std::string today();

}  // namespace packjit
