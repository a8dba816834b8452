#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "database/database.hpp"

namespace packjit {

/// An entry of a database that comes with the library, as a constant: reading documents takes milliseconds of a
/// program's start, these take none. database/embed_databases.cpp writes them when the library is built.
struct ShippedEntry {
  static constexpr std::size_t kMostFields = 24;
  Operator op;
  std::array<int, kMostFields> spec, config;  ///< the values, in the order of the operator's tables
  Bucket bucket;
  Workload measured;
  TimeStatistics time, built_in;
  double limit_share;
  int lowest_mhz, highest_mhz, tried;
  std::string_view method;
  double error;
  std::string_view nvrtc, driver, source_digest, date;
};

/// One document of database/shipped/.
struct ShippedDatabase {
  std::string_view name, arch;
  int multiprocessors;
  std::int64_t shared_bytes_per_block, l2_bytes;
  int memory_clock_mhz;
  std::span<const ShippedEntry> entries;
};

/// What the build embedded.
[[nodiscard]] std::span<const ShippedDatabase> shipped_constants();

[[nodiscard]] Database database_of(const ShippedDatabase& shipped);

/// Those of shipped_constants(), made at the first call. Safe to call from any thread.
[[nodiscard]] const std::vector<Database>& shipped_databases();

}  // namespace packjit
