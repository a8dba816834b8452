#include "database/shipped.hpp"

#include <string>
#include <utility>

namespace packjit {
namespace {

void set_all(FieldValues& values, std::span<const int> constants) {
  for (std::size_t i = 0; i < values.table().size(); ++i) values.set(values.table()[i].name, constants[i]);
}

}  // namespace

Database database_of(const ShippedDatabase& shipped) {
  Database database;
  database.origin = "the database shipped with packjit";
  database.gpu = GpuProperties{.name = std::string(shipped.name),
                               .arch = std::string(shipped.arch),
                               .multiprocessors = shipped.multiprocessors,
                               .shared_bytes_per_block = shipped.shared_bytes_per_block,
                               .l2_bytes = shipped.l2_bytes,
                               .memory_clock_mhz = shipped.memory_clock_mhz};
  database.entries.reserve(shipped.entries.size());
  for (const ShippedEntry& constant : shipped.entries) {
    Entry entry{.spec = Spec(constant.op), .config = Config(constant.op)};
    set_all(entry.spec.values, constant.spec);
    set_all(entry.config.values, constant.config);
    entry.bucket = constant.bucket;
    entry.measured = constant.measured;
    entry.time = constant.time;
    entry.built_in = constant.built_in;
    entry.limit_share = constant.limit_share;
    entry.lowest_mhz = constant.lowest_mhz;
    entry.highest_mhz = constant.highest_mhz;
    entry.tried = constant.tried;
    entry.check = {std::string(constant.method), constant.error};
    entry.gpu = *database.gpu;
    entry.nvrtc = constant.nvrtc;
    entry.driver = constant.driver;
    entry.source_digest = constant.source_digest;
    entry.date = constant.date;
    database.entries.push_back(std::move(entry));
  }
  return database;
}

const std::vector<Database>& shipped_databases() {
  // Never destroyed: threads may use it while the process ends.
  static const auto* const kDatabases = [] {
    auto* databases = new std::vector<Database>;
    for (const ShippedDatabase& shipped : shipped_constants()) databases->push_back(database_of(shipped));
    return databases;
  }();
  return *kDatabases;
}

}  // namespace packjit
