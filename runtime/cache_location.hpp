#pragma once

#include <cstdint>
#include <string>

namespace packjit {

/// Where the disk cache is and how large it may be, as the environment says.
struct CacheLocation {
  std::string path;        ///< empty where there is none
  std::int64_t bytes = 0;  ///< most bytes of all entries together
  std::string problem;     ///< why there is no disk cache; empty where there is one
  std::string passed_over =
      {};  ///< a setting that means nothing, and what holds in its place; empty where there is none
};

inline constexpr std::int64_t kDefaultCacheBytes = std::int64_t{1} << 30;  // 1 GiB

/// PACKJIT_CACHE_DIR, else $XDG_CACHE_HOME/packjit, else $HOME/.cache/packjit; PACKJIT_CACHE_BYTES, where 0 turns the
/// disk cache off and anything but a number leaves the default.
[[nodiscard]] CacheLocation cache_location();

}  // namespace packjit
