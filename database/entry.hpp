#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "database/bucket.hpp"
#include "generator/operators.hpp"

namespace packjit {

/// What of a GPU decides how fast a Config is, and whether it can run at all. Sizes in bytes.
struct GpuProperties {
  std::string name;  ///< marketing name: a label, never compared
  std::string arch;  ///< "sm_90"
  int multiprocessors = 0;
  std::int64_t shared_bytes_per_block = 0;  ///< the largest dynamic shared memory a block can ask for
  std::int64_t l2_bytes = 0;
  int memory_clock_mhz = 0;
};
/// Whether what was measured on one holds for the other: all but the name is equal.
[[nodiscard]] bool same_model(const GpuProperties& a, const GpuProperties& b);

/// Milliseconds of one call, over the rounds of a measurement.
struct TimeStatistics {
  double median_ms = 0, low_ms = 0, high_ms = 0;  ///< low and high: 10 % and 90 % of the rounds
  int rounds = 0;
};

/// How results were compared before an entry could win.
struct NumericalCheck {
  std::string method;  ///< against what
  double error = 0;    ///< the worst relative error of any tensor, as a share of its bound: at most 1
};

/// One tuned Config.
struct Entry {
  Spec spec;
  Bucket bucket{};
  Config config;
  Workload measured{};                  ///< the shape that was timed
  TimeStatistics time{};                ///< of `config`
  TimeStatistics built_in{};            ///< of the built-in Config, in the same rounds
  double limit_share = 0;               ///< the time that the GPU's limits allow at least, over the median
  int lowest_mhz = 0, highest_mhz = 0;  ///< clock of the multiprocessors seen meanwhile
  int tried = 0;                        ///< candidates that were measured
  NumericalCheck check{};
  GpuProperties gpu{};
  std::string nvrtc{}, driver{};  ///< versions
  std::string source_digest{};    ///< of the generated source without comments
  std::string date{};             ///< YYYY-MM-DD, or YYYY-MM-DDThh:mm:ssZ where the later of one day counts
  nlohmann::json unknown = nlohmann::json::object();  ///< fields of newer versions, written back as they came
};

/// A candidate that is not to be tried again.
struct FailedCandidate {
  Spec spec;
  Config config;
  Workload measured{};
  std::string reason{};
  GpuProperties gpu{};
  std::string nvrtc{}, driver{}, source_digest{};  ///< with another of these it may be tried again
  nlohmann::json unknown = nlohmann::json::object();
};

}  // namespace packjit
