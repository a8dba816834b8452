#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace packjit {

/// What one streaming multiprocessor (SM) of an architecture holds. Sizes in bytes.
struct ArchLimits {
  int arch;                         ///< 90 for sm_90
  int threads;                      ///< resident threads
  int blocks;                       ///< resident blocks
  std::int64_t shared_bytes;        ///< shared memory of the SM
  std::int64_t shared_per_block;    ///< the most that one block can ask for
  std::int64_t reserved_per_block;  ///< taken by the system from the SM for every block
};

/// The limits of an architecture that is known here ("sm_90"); none for others. Source: the table of technical
/// specifications per compute capability in the CUDA programming guide.
[[nodiscard]] std::optional<ArchLimits> arch_limits(std::string_view arch);

/// How many blocks of a kernel one SM holds at once.
struct Occupancy {
  int blocks = 0;
  int warps = 0;           ///< resident warps
  int max_warps = 0;       ///< that the SM could hold
  std::string_view limit;  ///< what stops one more block: "registers", "shared memory", "threads", "blocks"
};

/// Occupancy from the limits alone, without a GPU. `registers` per thread; `shared_bytes` static and dynamic together;
/// `block` threads. A block that does not fit at all gives 0 blocks.
[[nodiscard]] Occupancy occupancy(const ArchLimits& limits, int registers, std::int64_t shared_bytes, int block);

}  // namespace packjit
