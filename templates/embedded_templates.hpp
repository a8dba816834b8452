#pragma once

#include <string_view>

namespace packjit {

/// The text of a file below templates/, such as "device/math.cuh"; empty if there is none of that name.
[[nodiscard]] std::string_view embedded_template(std::string_view name);

}  // namespace packjit
