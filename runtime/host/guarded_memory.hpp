#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace packjit::host {

/// Buffers with a guard zone of kGuardBytes on both sides, filled with 0xFF (a NaN in every float type).
///
/// One thread may use it at a time.
class GuardedMemory {
 public:
  /// 256-byte aligned, never null, also for 0 bytes. Throws std::runtime_error naming the size when memory runs out.
  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Null is allowed. A damaged guard zone is remembered until the next check().
  void release(void* memory) noexcept;
  /// Throws std::invalid_argument naming the attempt unless all the bytes lie in one buffer. 0 bytes always do.
  void require(const void* memory, std::size_t bytes, const char* attempt) const;
  /// Looks at every guard zone; the first damage is remembered as seen `after` that.
  void look(const std::string& after);
  /// Throws CheckFailed with the first damage remembered, which is then forgotten and repaired, so that a later check
  /// is of what happened since.
  void check();

 private:
  struct Free {
    void operator()(char* storage) const noexcept;
  };
  struct Allocation {
    std::unique_ptr<char, Free> storage;
    char* start;
    std::size_t bytes;
  };
  /// Empty when the guard zones are whole.
  [[nodiscard]] static std::string damage(const Allocation& allocation);

  std::map<std::uintptr_t, Allocation> allocations_;  ///< by address of the buffer
  std::string damage_;
};

}  // namespace packjit::host
