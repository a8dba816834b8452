#include "runtime/cache_entry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "runtime/digest.hpp"

namespace packjit {
namespace {

constexpr std::string_view kEntryMagic = "PJENTRY\n";
constexpr std::string_view kBundleMagic = "PJBUNDL\n";
constexpr double kNanoseconds = 1e9;                                         // in a second
constexpr std::uint64_t kMostNanoseconds = 366ULL * 86'400 * 1'000'000'000;  // a year

// In the order of the file; their lengths stand before them.
enum Section {
  source_key,
  source_digest,
  arch,
  nvrtc_version,
  nvrtc_build,
  options,
  source,
  log,
  cubin,
  ptx,
  sections
};
constexpr std::size_t kMagicBytes = 8;
constexpr std::size_t kHeaderBytes = kMagicBytes + 4 + 4 + 8 + 8 * std::size_t{sections};

void put(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xffU);
}

std::uint64_t number_at(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)])} << (8 * i);
  }
  return value;
}

// Empty where `bytes` begin as a file of this kind and version does.
std::string wrong_beginning(std::string_view bytes, std::string_view magic, std::string_view kind) {
  if (bytes.size() < magic.size() + 4) return fmt::format("it has only {} bytes", bytes.size());
  if (!bytes.starts_with(magic)) return fmt::format("it does not begin as {} does", kind);
  const std::uint64_t version = number_at(bytes, magic.size(), 4);
  if (version == kCacheFormat) return {};
  return fmt::format("its format has version {}, this packjit reads {}", version, kCacheFormat);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

}  // namespace

CacheEntry entry_of(const CacheKey& key, const std::string& source_text, const CompileResult& result) {
  return {key, CacheEntry::Origin::compiled, result.seconds, source_text, result.log, result.cubin, result.ptx};
}

CompileResult result_of(CacheEntry entry) {
  CompileResult result;
  result.ok = true;
  result.log = std::move(entry.log);
  result.options = std::move(entry.key.options);
  result.arch = std::move(entry.key.arch);
  result.cubin = std::move(entry.cubin);
  result.ptx = std::move(entry.ptx);
  result.seconds = entry.seconds;
  result.nvrtc_version = std::move(entry.key.nvrtc_version);
  return result;
}

std::string entry_bytes(const CacheEntry& entry) {
  std::string option_lines;
  for (const std::string& option : entry.key.options) {
    if (option.find('\n') != std::string::npos) {
      throw std::invalid_argument(fmt::format("a compiler option cannot hold a line break: '{}'", option));
    }
    option_lines += option + "\n";
  }
  const std::array<std::string_view, sections> parts = {entry.key.source_key,  entry.key.source_digest,
                                                        entry.key.arch,        entry.key.nvrtc_version,
                                                        entry.key.nvrtc_build, option_lines,
                                                        entry.source,          entry.log,
                                                        entry.cubin,           entry.ptx};
  std::string bytes(kEntryMagic);
  put(bytes, kCacheFormat, 4);
  put(bytes, static_cast<std::uint64_t>(entry.origin), 4);
  put(bytes, static_cast<std::uint64_t>(std::llround(entry.seconds * kNanoseconds)), 8);
  for (const std::string_view part : parts) put(bytes, part.size(), 8);
  for (const std::string_view part : parts) bytes += part;
  return bytes + digest_bytes(bytes);
}

std::optional<CacheEntry> parse_entry(std::string_view bytes, std::string& problem) {
  const auto fail = [&](std::string reason) {
    problem = std::move(reason);
    return std::nullopt;
  };
  if (std::string wrong = wrong_beginning(bytes, kEntryMagic, "an entry"); !wrong.empty()) return fail(wrong);
  if (bytes.size() < kHeaderBytes + kDigestBytes) return fail(fmt::format("it has only {} bytes", bytes.size()));

  std::array<std::string_view, sections> parts;
  std::size_t at = kHeaderBytes;
  const std::size_t end = bytes.size() - kDigestBytes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint64_t length = number_at(bytes, kHeaderBytes - 8 * (parts.size() - i), 8);
    if (length > end - at) return fail("it is shorter than its header says");
    parts[i] = bytes.substr(at, static_cast<std::size_t>(length));
    at += parts[i].size();
  }
  if (at != end) return fail("it is longer than its header says");
  if (digest_bytes(bytes.substr(0, end)) != bytes.substr(end)) return fail("its checksum does not fit its contents");
  const std::uint64_t origin = number_at(bytes, kMagicBytes + 4, 4);
  const std::uint64_t nanoseconds = number_at(bytes, kMagicBytes + 8, 8);
  if (nanoseconds > kMostNanoseconds) return fail("its compile took longer than a year");
  if (origin > 1) return fail(fmt::format("its origin is {}, expected 0 or 1", origin));
  if (digest_hex(parts[source]) != parts[source_digest]) return fail("its source has another digest than its key");
  if (parts[cubin].empty() || parts[ptx].empty()) return fail("it lacks an image");

  CacheEntry entry;
  entry.key = {std::string(parts[source_key]),    std::string(parts[source_digest]), std::string(parts[arch]),
               std::string(parts[nvrtc_version]), std::string(parts[nvrtc_build]),   lines_of(parts[options])};
  entry.origin = static_cast<CacheEntry::Origin>(origin);
  entry.seconds = static_cast<double>(nanoseconds) / kNanoseconds;
  entry.source = parts[source];
  entry.log = parts[log];
  entry.cubin = parts[cubin];
  entry.ptx = parts[ptx];
  return entry;
}

std::string bundle_bytes(const std::vector<std::string>& entries) {
  std::string bytes(kBundleMagic);
  put(bytes, kCacheFormat, 4);
  put(bytes, entries.size(), 4);
  for (const std::string& entry : entries) {
    put(bytes, entry.size(), 8);
    bytes += entry;
  }
  return bytes;
}

std::optional<std::vector<CacheEntry>> parse_bundle(std::string_view bytes, std::string& problem) {
  const auto fail = [&](std::string reason) {
    problem = std::move(reason);
    return std::nullopt;
  };
  if (std::string wrong = wrong_beginning(bytes, kBundleMagic, "a bundle"); !wrong.empty()) return fail(wrong);
  if (bytes.size() < kMagicBytes + 8) return fail(fmt::format("it has only {} bytes", bytes.size()));
  const std::uint64_t count = number_at(bytes, kMagicBytes + 4, 4);
  bytes.remove_prefix(kMagicBytes + 8);
  std::vector<CacheEntry> entries;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t length = bytes.size() < 8 ? 0 : number_at(bytes, 0, 8);
    if (bytes.size() < 8 || length > bytes.size() - 8)
      return fail(fmt::format("it ends in entry {} of {}", i + 1, count));
    std::string why;
    std::optional<CacheEntry> entry = parse_entry(bytes.substr(8, static_cast<std::size_t>(length)), why);
    if (!entry) return fail(fmt::format("entry {} of {}: {}", i + 1, count, why));
    entries.push_back(std::move(*entry));
    bytes.remove_prefix(8 + static_cast<std::size_t>(length));
  }
  if (!bytes.empty()) return fail(fmt::format("{} bytes follow its {} entries", bytes.size(), count));
  return entries;
}

}  // namespace packjit
