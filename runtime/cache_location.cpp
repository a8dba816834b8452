#include "runtime/cache_location.hpp"

#include <fmt/format.h>

#include <charconv>

#include "runtime/settings.hpp"

namespace packjit {

CacheLocation cache_location() {
  CacheLocation location;
  location.bytes = kDefaultCacheBytes;
  if (const auto text = environment("PACKJIT_CACHE_BYTES")) {
    const char* const end = text->data() + text->size();
    std::int64_t bytes = 0;
    const auto [parsed, error] = std::from_chars(text->data(), end, bytes);
    if (error != std::errc() || parsed != end || bytes < 0) {
      location.passed_over =
          fmt::format("PACKJIT_CACHE_BYTES is '{}', expected a number of bytes such as {}", *text, kDefaultCacheBytes);
    } else {
      location.bytes = bytes;
    }
  }
  const UserFolder folder = user_folder("PACKJIT_CACHE_DIR", "XDG_CACHE_HOME", ".cache");
  location.path = folder.path;
  location.problem = folder.problem;
  return location;
}

}  // namespace packjit
