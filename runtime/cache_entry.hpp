#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cache_key.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// One compiled kernel as the disk cache and bundles hold it.
struct CacheEntry {
  enum class Origin { compiled, imported };
  CacheKey key;
  Origin origin = Origin::compiled;  ///< imported: it came with a bundle
  double seconds = 0;                ///< that compiling took, to the nanosecond
  std::string source, log, cubin, ptx;
};

/// The result of a compile that went well, with what it was made from.
[[nodiscard]] CacheEntry entry_of(const CacheKey& key, const std::string& source, const CompileResult& result);
/// What compile() returned for it.
[[nodiscard]] CompileResult result_of(CacheEntry entry);

/// The bytes of docs/cache_format.md; equal entries give equal bytes. Throws std::invalid_argument for an option with a
/// line break.
[[nodiscard]] std::string entry_bytes(const CacheEntry& entry);
/// Reads them back. Nothing where a byte is missing, added or changed, or another version wrote them; `problem` is then
/// one clause that says which. Any bytes are safe to give.
[[nodiscard]] std::optional<CacheEntry> parse_entry(std::string_view bytes, std::string& problem);

/// Several entries as one file, each given as its entry_bytes().
[[nodiscard]] std::string bundle_bytes(const std::vector<std::string>& entries);
/// All entries, or nothing and `problem`, as parse_entry().
[[nodiscard]] std::optional<std::vector<CacheEntry>> parse_bundle(std::string_view bytes, std::string& problem);

}  // namespace packjit
