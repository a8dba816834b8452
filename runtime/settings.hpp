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

/// A folder of the user's: what the variable `own` says, else packjit in `xdg`, else packjit in `below_home` of HOME. A
/// relative `xdg` is passed over, as its specification wants. A relative folder is none: it would be another one in
/// each working directory.
struct UserFolder {
  std::string path;     ///< absolute; empty where there is none
  std::string problem;  ///< why there is none, and what to do; empty where there is one
};
[[nodiscard]] UserFolder user_folder(const char* own, const char* xdg, const std::string& below_home);

}  // namespace packjit
