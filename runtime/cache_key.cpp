#include "runtime/cache_key.hpp"

#include <fmt/format.h>

#include "runtime/digest.hpp"

namespace packjit {

std::string full_key(const CacheKey& key) {
  std::string text = fmt::format("format {}\nsource {}\ndigest {}\narch {}\nnvrtc {}\nbuild {}\n", kCacheFormat,
                                 key.source_key, key.source_digest, key.arch, key.nvrtc_version, key.nvrtc_build);
  for (const std::string& option : key.options) text += fmt::format("option {}\n", option);
  return text;
}

std::string short_key(const CacheKey& key) { return digest_hex(full_key(key)); }

}  // namespace packjit
