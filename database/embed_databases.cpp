// Writes OUTPUT, a C++ file that defines packjit::shipped_constants() for the documents FILES. Runs when the library is
// built, so that a document that is damaged, or made for other versions of the kernels' fields, stops the build.
//
//   embed_databases OUTPUT FILE...
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>

#include "database/shipped.hpp"
#include "runtime/text_file.hpp"

namespace packjit {
namespace {

/// A C++ literal of the same text.
std::string literal(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', true); }

std::string constant(const TimeStatistics& time) {
  return fmt::format("{{{}, {}, {}, {}}}", time.median_ms, time.low_ms, time.high_ms, time.rounds);
}

std::string constant(const FieldValues& values) {
  if (values.table().size() > ShippedEntry::kMostFields) {
    throw std::logic_error("ShippedEntry::kMostFields is less than an operator has fields");
  }
  std::string text;
  for (const Field& field : values.table()) text += fmt::format("{}{}", text.empty() ? "" : ", ", values[field.name]);
  return "{" + text + "}";
}

std::string constant(const Entry& entry) {
  const Bucket& bucket = entry.bucket;
  const Workload& work = entry.measured;
  return fmt::format(
      "    {{Operator::{}, {{{}}}, {{{}}}, {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {}, {}, {}, {}, {}, {}, "
      "{}, {}, {}, {}, {}, {}}},\n",
      name_of(entry.spec.op), constant(entry.spec.values), constant(entry.config.values), bucket.dim, bucket.tokens,
      bucket.spread, bucket.mean_length, work.tokens, work.sequences, work.dim, work.longest, constant(entry.time),
      constant(entry.built_in), entry.limit_share, entry.lowest_mhz, entry.highest_mhz, entry.tried,
      literal(entry.check.method), entry.check.error, literal(entry.nvrtc), literal(entry.driver),
      literal(entry.source_digest), literal(entry.date));
}

Database read(const std::string& path) {
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  const auto fail = [](std::string_view reason) { throw std::invalid_argument(std::string(reason)); };
  Database database = parse_database(read_text_file(path, kAny, "", fail));
  if (!database.gpu) throw std::invalid_argument("it names no GPU");
  if (!database.unusable.empty())
    throw std::invalid_argument("an entry cannot be used: " + database.unusable[0].reason);
  return database;
}

std::string source_of(std::span<const std::string> paths) {
  std::string entries, databases;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    try {
      const Database database = read(paths[i]);
      entries += fmt::format("constexpr ShippedEntry kEntries{}[] = {{\n", i);
      for (const Entry& entry : database.entries) entries += constant(entry);
      entries += "};\n";
      const GpuProperties& gpu = *database.gpu;
      databases += fmt::format("    {{{}, {}, {}, {}, {}, {}, kEntries{}}},\n", literal(gpu.name), literal(gpu.arch),
                               gpu.multiprocessors, gpu.shared_bytes_per_block, gpu.l2_bytes, gpu.memory_clock_mhz, i);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(
          fmt::format("cannot embed the tuning database {}: {}; give a document as in docs/database_format.md, or "
                      "leave this one out",
                      paths[i], error.what()));
    }
  }
  return fmt::format(R"(#include "database/shipped.hpp"

namespace packjit {{
namespace {{
{}constexpr ShippedDatabase kDatabases[] = {{
{}}};
}}  // namespace

std::span<const ShippedDatabase> shipped_constants() {{ return kDatabases; }}

}}  // namespace packjit
)",
                     entries, databases);
}

}  // namespace
}  // namespace packjit

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::invalid_argument("usage: embed_databases OUTPUT FILE...");
    const std::string source = packjit::source_of(std::vector<std::string>(argv + 2, argv + argc));
    errno = 0;
    std::ofstream file(argv[1], std::ios::binary);
    file << source;
    if (!file.flush()) {
      throw std::runtime_error(fmt::format("cannot write the C++ file {}: {}; give one that can be written", argv[1],
                                           std::generic_category().message(errno)));
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "embed_databases: " << error.what() << "\n";
    return 1;
  }
}
