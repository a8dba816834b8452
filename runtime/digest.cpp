#include "runtime/digest.hpp"

#define XXH_INLINE_ALL  // the functions come from the header, nothing is linked
#include <xxhash.h>

namespace packjit {

std::string digest_bytes(std::string_view data) {
  XXH128_canonical_t canonical;
  static_assert(sizeof canonical.digest == kDigestBytes);
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  return {reinterpret_cast<const char*>(canonical.digest), kDigestBytes};
}

std::string digest_hex(std::string_view data) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : digest_bytes(data)) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace packjit
