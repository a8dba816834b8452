#pragma once

#include <string>

namespace packjit {

/// Of today in UTC, "YYYY-MM-DD".
[[nodiscard]] std::string today();
/// The time in UTC, "YYYY-MM-DDThh:mm:ssZ".
[[nodiscard]] std::string this_second();

}  // namespace packjit
