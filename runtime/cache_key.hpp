#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace packjit {

/// Version of the format of entries and bundles; docs/cache_format.md has its bytes. Part of every key.
inline constexpr std::uint32_t kCacheFormat = 1;

/// Everything that a compiled kernel depends on, and nothing else: no path, user, locale, clock or random value.
struct CacheKey {
  std::string source_key;     ///< operator, Spec and Config as Source::key has them, or "edited"
  std::string source_digest;  ///< digest_hex() of the source text
  std::string arch;           ///< "sm_90"
  std::string nvrtc_version;  ///< "13.0"
  std::string nvrtc_build;    ///< the identity of the library: releases of one version differ
  std::vector<std::string> options;
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

/// All of it, a line a part.
[[nodiscard]] std::string full_key(const CacheKey& key);

/// 32 hexadecimal digits: the digest of the full key. The entry's file has this name and kEntryEnding.
[[nodiscard]] std::string short_key(const CacheKey& key);

}  // namespace packjit
