#pragma once

#include <string>
#include <string_view>

namespace packjit {

inline constexpr std::size_t kDigestBytes = 16;

/// XXH3 with 128 bits, in its canonical order of bytes. It finds damage and tells texts apart; it is no protection
/// against somebody who makes collisions on purpose.
[[nodiscard]] std::string digest_bytes(std::string_view data);

/// The same as 32 lower-case hexadecimal digits.
[[nodiscard]] std::string digest_hex(std::string_view data);

}  // namespace packjit
