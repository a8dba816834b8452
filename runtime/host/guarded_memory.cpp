#include "runtime/host/guarded_memory.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "runtime/errors.hpp"
#include "runtime/host/guard_zone.hpp"

namespace packjit::host {
namespace {

constexpr std::size_t kAlignment = 256;
static_assert(kGuardBytes % kAlignment == 0);
constexpr unsigned char kPoison = 0xff;

std::uintptr_t address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

void GuardedMemory::Free::operator()(char* storage) const noexcept { std::free(storage); }

void* GuardedMemory::allocate(std::size_t bytes) {
  constexpr std::size_t kExtra = 2 * kGuardBytes + kAlignment;
  char* storage = nullptr;
  if (bytes <= std::numeric_limits<std::size_t>::max() / 2) {
    // The library wants a multiple of the alignment; the guard zone still begins at the very next byte.
    const std::size_t rounded = (bytes + kExtra) / kAlignment * kAlignment;
    storage = static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
  }
  if (storage == nullptr) {
    throw OutOfMemory(fmt::format("allocating {} bytes for host execution failed: out of memory", bytes));
  }
  Allocation allocation{std::unique_ptr<char, Free>(storage), storage + kGuardBytes, bytes};
  write_guard(storage, kGuardBytes);
  if (bytes != 0) std::memset(allocation.start, kPoison, bytes);
  write_guard(allocation.start + bytes, kGuardBytes);
  char* start = allocation.start;
  allocations_.emplace(address(start), std::move(allocation));
  return start;
}

void GuardedMemory::release(void* memory) noexcept {
  const auto found = allocations_.find(address(memory));
  if (found == allocations_.end()) return;
  try {
    if (damage_.empty()) damage_ = damage(found->second);
  } catch (...) {
    // No memory for a message; the check that follows is then about the other buffers.
  }
  allocations_.erase(found);
}

void GuardedMemory::require(const void* memory, std::size_t bytes, const char* attempt) const {
  if (bytes == 0) return;
  auto after = allocations_.upper_bound(address(memory));
  if (after != allocations_.begin()) {
    const Allocation& allocation = std::prev(after)->second;
    const std::size_t offset = address(memory) - address(allocation.start);
    if (offset <= allocation.bytes && bytes <= allocation.bytes - offset) return;
    if (offset < allocation.bytes) {
      throw std::invalid_argument(fmt::format("{} {} bytes at offset {} of a buffer of {} bytes goes past its end",
                                              attempt, bytes, offset, allocation.bytes));
    }
  }
  throw std::invalid_argument(
      fmt::format("{} {} bytes: the address is not inside a buffer of this device", attempt, bytes));
}

std::string GuardedMemory::damage(const Allocation& allocation) {
  const char* end = allocation.start + allocation.bytes;
  if (const auto offset = last_damage(allocation.start - kGuardBytes, kGuardBytes)) {
    return fmt::format("a write before the start of a buffer of {} bytes, at offset -{}", allocation.bytes,
                       kGuardBytes - *offset);
  }
  if (const auto offset = first_damage(end, kGuardBytes)) {
    return fmt::format("a write past the end of a buffer of {} bytes, at offset {}", allocation.bytes,
                       allocation.bytes + *offset);
  }
  return "";
}

void GuardedMemory::look(const std::string& after) {
  if (!damage_.empty()) return;
  for (const auto& [start, allocation] : allocations_) {
    damage_ = damage(allocation);
    if (damage_.empty()) continue;
    damage_ += ", first seen after " + after;
    return;
  }
}

void GuardedMemory::check() {
  look("the last launch");
  if (damage_.empty()) return;
  for (const auto& [start, allocation] : allocations_) {
    write_guard(allocation.start - kGuardBytes, kGuardBytes);
    write_guard(allocation.start + allocation.bytes, kGuardBytes);
  }
  throw CheckFailed("guard zone damaged: " + std::exchange(damage_, {}));
}

}  // namespace packjit::host
