#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/compile_for_gpu.hpp"
#include "runtime/driver.hpp"

namespace packjit::testing {

/// A CUDA driver that runs nothing and is strict: a function of another context is refused, and a capture ends where
/// the real one would end. It has two GPUs, of sm_90 and sm_100. One at a time in a process; thread-safe.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  [[nodiscard]] const Driver& driver() const { return driver_; }
  /// Gives images at once.
  [[nodiscard]] static CompileForGpu compiler();

  /// A context at an address; destroying it and making it again gives the same address and another id.
  CUcontext make_context(int slot, CUdevice gpu = 0);
  void destroy_context(CUcontext context);
  /// On this thread; null for none.
  static void make_current(CUcontext context);
  /// cudaDeviceReset of the first GPU: its primary context is destroyed.
  void reset_gpu();

  void begin_capture(CUstream stream);
  /// Whether it is still valid. It ends.
  bool end_capture(CUstream stream);

  /// From now on every change of a kernel's attributes takes some milliseconds.
  void change_attributes_slowly();

  /// From now on so many bytes can be taken besides what is in use.
  void limit_memory(std::size_t bytes);

  /// So many of the images that are loaded next are refused, as those of another architecture are.
  void refuse_images(int count);

  struct Counts {
    int calls = 0;     ///< of any function that the real driver would be entered for
    int launches = 0;  ///< on streams that are not captured
    int recorded = 0;  ///< on streams that are
    int modules_loaded = 0, modules_alive = 0, stray_unloads = 0;
    int allocations = 0, frees = 0;
    int streams_made = 0, streams_destroyed = 0;
    int lowered = 0;  ///< times a kernel's shared memory was lowered
  };
  [[nodiscard]] Counts counts() const;
  /// Launches in contexts of one GPU, captured or not.
  [[nodiscard]] int launches_of(CUdevice gpu) const;
  /// Launches on one stream, captured or not.
  [[nodiscard]] int launches_on(void* stream) const;

  struct State;

 private:
  Driver driver_;
  std::unique_ptr<State> state_;
};

}  // namespace packjit::testing
