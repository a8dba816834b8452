#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace packjit {

/// One environment variable that the library or the program reads.
struct Setting {
  const char* name;
  std::string_view meaning;   ///< one line of help
  std::string_view fallback;  ///< what holds when it is unset, in words
};

/// Every environment variable that is read, in the order that `packjit doctor` shows.
[[nodiscard]] std::span<const Setting> settings();

/// The value of an environment variable; none when it is unset or empty.
[[nodiscard]] std::optional<std::string> environment(const char* name);

}  // namespace packjit
