#pragma once

#include <cstddef>
#include <optional>

namespace packjit::host {

/// Bytes on either side of a buffer that nobody may write. The pattern has no run of equal bytes, so that a stray zero,
/// a stray NaN or a copied piece of memory shows.
///
/// `zone` need not be aligned; `bytes` is at most kGuardBytes.
inline constexpr std::size_t kGuardBytes = 4096;
void write_guard(char* zone, std::size_t bytes) noexcept;
/// The offset of the first byte that differs, or nothing.
[[nodiscard]] std::optional<std::size_t> first_damage(const char* zone, std::size_t bytes) noexcept;
/// The same, seen from the far end: the last byte that differs.
[[nodiscard]] std::optional<std::size_t> last_damage(const char* zone, std::size_t bytes) noexcept;

}  // namespace packjit::host
