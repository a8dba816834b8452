#pragma once

#include <string>
#include <string_view>

namespace packjit {

/// A name out of a file, fit for a terminal: what would move the cursor, clear the screen or begin a line is \xHH.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace packjit
