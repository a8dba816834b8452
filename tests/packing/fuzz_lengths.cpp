// Any bytes as a lengths file, both forms: a list of documents in range or std::invalid_argument, nothing else. What is
// accepted is then packed, cut small.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "cli/lengths_file.hpp"
#include "cli/plan_file.hpp"
#include "packing/statistics.hpp"

namespace {

void pack(std::vector<packjit::Document> documents) {
  packjit::PackOptions options;
  options.pack_length = 64;
  options.cut = 48;
  options.rows_per_call = 2;
  options.window = 4;
  options.open_packs = 2;
  std::int64_t tokens = 0;
  for (const packjit::Document& document : documents) {
    if (document.length < 1 || document.length > packjit::kMaximumLength) std::abort();
    tokens += document.length;
  }
  if (tokens > 100000) return;  // time, not correctness
  for (const packjit::PackMethod& method : packjit::pack_methods()) {
    const packjit::PackPlan plan = method.plan(documents, options);
    if (packjit::statistics_of(plan, documents).tokens != tokens) std::abort();
    if (packjit::plan_json(plan).empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    pack(packjit::parse_lengths({reinterpret_cast<const char*>(data), size}, "input"));
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
