#pragma once

#include <cstddef>
#include <map>

#include "runtime/cuda_context.hpp"

namespace packjit {

/// Device memory between guard zones: 256 bytes of a known pattern before the first and after the last byte asked for.
/// Internal. Not thread-safe. The context must be current in every call and must outlive the object.
class CudaMemory {
 public:
  explicit CudaMemory(const CudaContext& context) : context_(context) {}
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  [[nodiscard]] void* allocate(std::size_t bytes);
  void release(void* memory) noexcept;
  /// Not done on destruction, where no context is current.
  void release_all() noexcept;
  /// Throws CheckFailed naming the allocation, the side and the offset of the first changed byte. Waits.
  void check_guards() const;

 private:
  struct Block {
    CUdeviceptr base;
    std::size_t bytes;  ///< asked for
  };
  const CudaContext& context_;
  std::map<CUdeviceptr, Block> blocks_;  // by the address handed out
};

}  // namespace packjit
