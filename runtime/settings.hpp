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

/// Whether PACKJIT_SELF_CHECK asks for self-checks: on, which is the default, or off. Anything else is passed over, and
/// `problem` says so.
[[nodiscard]] bool self_check_setting(std::string& problem);

/// The value of an environment variable; none when it is unset or empty.
[[nodiscard]] std::optional<std::string> environment(const char* name);

}  // namespace packjit
