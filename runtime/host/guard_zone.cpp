#include "runtime/host/guard_zone.hpp"

#include <array>
#include <cstring>

namespace packjit::host {
namespace {

constexpr std::array<char, kGuardBytes> make_pattern() {
  std::array<char, kGuardBytes> pattern{};
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    pattern[i] = static_cast<char>(static_cast<unsigned char>(0x5au + 37u * i + (i >> 8)));
  }
  return pattern;
}
constexpr std::array<char, kGuardBytes> kPattern = make_pattern();

}  // namespace

void write_guard(char* zone, std::size_t bytes) noexcept { std::memcpy(zone, kPattern.data(), bytes); }

std::optional<std::size_t> first_damage(const char* zone, std::size_t bytes) noexcept {
  if (std::memcmp(zone, kPattern.data(), bytes) == 0) return {};
  for (std::size_t i = 0; i < bytes; ++i) {
    if (zone[i] != kPattern[i]) return i;
  }
  return {};
}

std::optional<std::size_t> last_damage(const char* zone, std::size_t bytes) noexcept {
  if (std::memcmp(zone, kPattern.data(), bytes) == 0) return {};
  for (std::size_t i = bytes; i-- > 0;) {
    if (zone[i] != kPattern[i]) return i;
  }
  return {};
}

}  // namespace packjit::host
