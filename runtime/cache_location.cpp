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
  if (const auto folder = environment("PACKJIT_CACHE_DIR")) {
    location.path = *folder;
  } else if (const auto caches = environment("XDG_CACHE_HOME"); caches && caches->front() == '/') {
    location.path = *caches + "/packjit";
  } else if (const auto home = environment("HOME")) {
    location.path = *home + "/.cache/packjit";
  } else {
    location.problem = "none of PACKJIT_CACHE_DIR, XDG_CACHE_HOME and HOME is set; set PACKJIT_CACHE_DIR to a folder";
  }
  return location;
}

}  // namespace packjit
