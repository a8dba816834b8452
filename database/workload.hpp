#pragma once

#include <cstdint>

namespace packjit {

/// How much there is to do in one call, as far as the host knows. The default is "much".
struct Workload {
  std::int64_t tokens = std::int64_t{1} << 20;     ///< of all rows, padding included
  std::int64_t sequences = std::int64_t{1} << 20;  ///< at most as many
  std::int64_t dim = 4096;                         ///< channels
  std::int64_t longest = 1;                        ///< tokens of the longest sequence
  friend bool operator==(const Workload&, const Workload&) = default;
};

}  // namespace packjit
