// Any bytes as an entry and as a bundle: what is read is written back to the same bytes, all else is a problem in
// words. Each input is also tried with a checksum that fits, since no chance would find one.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/cache_entry.hpp"
#include "runtime/digest.hpp"

namespace {

void try_entry(std::string_view bytes) {
  std::string problem;
  const auto entry = packjit::parse_entry(bytes, problem);
  if (entry.has_value() == !problem.empty()) std::abort();
  if (!entry) return;
  // Options in a file may lack the last line break, and times are rounded, so contents are compared, not bytes.
  const auto again = packjit::parse_entry(packjit::entry_bytes(*entry), problem);
  if (!again || again->key != entry->key || again->source != entry->source || again->cubin != entry->cubin ||
      again->ptx != entry->ptx || again->log != entry->log || again->origin != entry->origin) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try_entry(bytes);
  const std::string body(bytes.substr(0, size < packjit::kDigestBytes ? size : size - packjit::kDigestBytes));
  try_entry(body + packjit::digest_bytes(body));
  std::string problem;
  if (packjit::parse_bundle(bytes, problem).has_value() == !problem.empty()) std::abort();
  return 0;
}
