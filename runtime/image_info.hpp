#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace packjit {

/// What one kernel of a cubin takes. Sizes in bytes.
struct KernelInfo {
  std::string name;
  int registers = 0;              ///< per thread
  std::int64_t frame_bytes = 0;   ///< local memory of the kernel itself, per thread: spills and indexed arrays
  std::int64_t stack_bytes = 0;   ///< the same with the functions it calls; equals frame_bytes where all are inlined
  std::int64_t shared_bytes = 0;  ///< static shared memory per block, without what the system reserves
  std::int64_t code_bytes = 0;
  /// No local memory at all, so nothing is spilled. Read off the image, not from what a tool prints.
  [[nodiscard]] bool spill_free() const { return frame_bytes == 0 && stack_bytes == 0; }
};

/// What a cubin says of itself.
struct ImageInfo {
  int arch = 0;                     ///< 90 for sm_90
  std::vector<KernelInfo> kernels;  ///< in the order of their names
};

/// Reads a cubin (ELF64, little endian). Throws std::invalid_argument that names what is wrong when the bytes are not a
/// whole cubin; any bytes are safe to pass.
[[nodiscard]] ImageInfo read_image(std::string_view cubin);

/// What the assembler said it spilled, from the log of a verbose compile. Informational: it counts instructions, while
/// KernelInfo::spill_free() is what decides.
struct SpillReport {
  std::string kernel;
  std::int64_t store_bytes = 0, load_bytes = 0;
};
[[nodiscard]] std::vector<SpillReport> spills_in_log(std::string_view log);

}  // namespace packjit
