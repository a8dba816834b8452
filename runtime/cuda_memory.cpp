#include "runtime/cuda_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

// A multiple of the alignment promised, 256 bytes, which the driver's allocations have.
constexpr std::size_t kGuardBytes = 256;
using Guard = std::array<unsigned char, kGuardBytes>;

// Every byte differs from its neighbours and from zero, so that shifted copies and fills show.
constexpr Guard make_guard() {
  Guard guard{};
  for (std::size_t i = 0; i < kGuardBytes; ++i) guard[i] = static_cast<unsigned char>((i * 37 + 165) % 251 + 1);
  return guard;
}
constexpr Guard kGuard = make_guard();

}  // namespace

void CudaMemory::release_all() noexcept {
  for (const auto& [address, block] : blocks_) context_.driver().memory_free(block.base);
  blocks_.clear();
}

void* CudaMemory::allocate(std::size_t bytes) {
  const Driver& driver = context_.driver();
  Block block{0, bytes};
  const CUresult status = bytes > SIZE_MAX - 2 * kGuardBytes
                              ? CUDA_ERROR_OUT_OF_MEMORY
                              : driver.memory_allocate(&block.base, bytes + 2 * kGuardBytes);
  if (status != CUDA_SUCCESS) {
    throw OutOfMemory(fmt::format("could not allocate {} bytes on {}, which has {} bytes: {}", bytes,
                                  context_.info().name, context_.info().memory_bytes, driver.describe(status)));
  }
  const CUdeviceptr address = block.base + kGuardBytes;
  CUresult guarded = driver.copy_to_device(block.base, kGuard.data(), kGuardBytes, context_.stream());
  if (guarded == CUDA_SUCCESS) {
    guarded = driver.copy_to_device(address + bytes, kGuard.data(), kGuardBytes, context_.stream());
  }
  if (guarded != CUDA_SUCCESS) driver.memory_free(block.base);
  driver.check(guarded, "write the guard zones of an allocation");
  blocks_.emplace(address, block);
  return to_pointer(address);
}

void CudaMemory::release(void* memory) noexcept {
  const auto found = blocks_.find(to_address(memory));
  if (found == blocks_.end()) return;
  context_.driver().memory_free(found->second.base);
  blocks_.erase(found);
}

void CudaMemory::check_guards() const {
  const Driver& driver = context_.driver();
  std::vector<Guard> read(2 * blocks_.size());
  std::size_t next = 0;
  for (const auto& [address, block] : blocks_) {
    for (const CUdeviceptr guard : {block.base, address + block.bytes}) {
      driver.check(driver.copy_to_host(read[next++].data(), guard, kGuardBytes, context_.stream()),
                   "read a guard zone");
    }
  }
  driver.check(driver.stream_synchronize(context_.stream()), "read the guard zones");
  next = 0;
  for (const auto& [address, block] : blocks_) {
    for (const bool before : {true, false}) {
      const Guard& found = read[next++];
      const auto [bad, expected] = std::mismatch(found.begin(), found.end(), kGuard.begin());
      if (bad == found.end()) continue;
      const auto index = static_cast<std::size_t>(bad - found.begin());
      const std::string place = before ? fmt::format("{} bytes before its start", kGuardBytes - index)
                                       : fmt::format("{} bytes past its end", index);
      throw CheckFailed(
          fmt::format("a kernel wrote outside a buffer: of the allocation of {} bytes at {}, the guard byte {} changed "
                      "from {} to {}",
                      block.bytes, fmt::ptr(to_pointer(address)), place, *expected, *bad));
    }
  }
}

}  // namespace packjit
