#include "runtime/cache_entry.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "runtime/check_record.hpp"

namespace packjit {
namespace {

// The golden files were not written by this code but by a script after docs/cache_format.md, their checksums by xxhsum.
std::string golden(const std::string& name) {
  std::ifstream file(std::string(PACKJIT_GOLDEN) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

CacheEntry golden_entry() {
  CacheEntry entry;
  entry.key = {
      "ssm_pack_fwd d_state=16 block=128",        "84eadcf8a308080f50441c2fadf481e9", "sm_90", "13.0", "build-1",
      {"--gpu-architecture=sm_90", "--std=c++17"}};
  entry.seconds = 1.5;
  entry.source = "kernel text\n";
  entry.log = "a log\n";
  entry.cubin = std::string(
      "\x7f"
      "ELF\0cubin",
      10);
  entry.ptx = "// ptx\n";
  return entry;
}

void expect_golden(const CacheEntry& entry) {
  const CacheEntry expected = golden_entry();
  EXPECT_EQ(entry.key, expected.key);
  EXPECT_EQ(entry.origin, CacheEntry::Origin::compiled);
  EXPECT_EQ(entry.seconds, 1.5);
  EXPECT_EQ(entry.source, expected.source);
  EXPECT_EQ(entry.log, expected.log);
  EXPECT_EQ(entry.cubin, expected.cubin);
  EXPECT_EQ(entry.ptx, expected.ptx);
}

TEST(CacheEntry, ReadsTheGoldenEntryOfVersion1) {
  std::string problem;
  const auto entry = parse_entry(golden("entry_v1.entry"), problem);
  ASSERT_TRUE(entry.has_value()) << problem;
  expect_golden(*entry);
}

TEST(CacheEntry, WritesTheBytesOfTheGoldenEntry) { EXPECT_EQ(entry_bytes(golden_entry()), golden("entry_v1.entry")); }

TEST(CacheEntry, ReadsAndWritesTheGoldenBundleOfVersion1) {
  CacheEntry second = golden_entry();
  second.key.arch = "sm_100";
  second.key.options[0] = "--gpu-architecture=sm_100";
  EXPECT_EQ(bundle_bytes({entry_bytes(golden_entry()), entry_bytes(second)}), golden("bundle_v1.bundle"));
  std::string problem;
  const auto entries = parse_bundle(golden("bundle_v1.bundle"), problem);
  ASSERT_TRUE(entries.has_value()) << problem;
  ASSERT_EQ(entries->size(), 2U);
  expect_golden(entries->front());
  EXPECT_EQ(entries->back().key.arch, "sm_100");
}

TEST(CheckRecord, WritesTheBytesOfTheGoldenFile) {
  const CheckRecord record{"ssm_pack_fwd d_state=16 block=128", "84eadcf8a308080f50441c2fadf481e9", "sm_90", "13.0"};
  EXPECT_EQ(check_text(record), golden("check_v1.checked"));
  EXPECT_EQ(short_name(record), "b1a2ae954f0e0bf42e5015261b0d02db");
}

TEST(CacheEntry, KeepsThatItWasImported) {
  CacheEntry entry = golden_entry();
  entry.origin = CacheEntry::Origin::imported;
  std::string problem;
  const auto read = parse_entry(entry_bytes(entry), problem);
  ASSERT_TRUE(read.has_value()) << problem;
  EXPECT_EQ(read->origin, CacheEntry::Origin::imported);
}

TEST(CacheEntry, KeyHasEveryPartAndItsDigestIsTheName) {
  EXPECT_EQ(full_key(golden_entry().key),
            "format 1\nsource ssm_pack_fwd d_state=16 block=128\ndigest 84eadcf8a308080f50441c2fadf481e9\narch sm_90\n"
            "nvrtc 13.0\nbuild build-1\noption --gpu-architecture=sm_90\noption --std=c++17\n");
  EXPECT_EQ(short_key(golden_entry().key), "75fbf6d030804055118538dfd3bad1de");  // by xxhsum
}

// K26: an entry cut at every length, with every byte changed, with bytes behind it.
TEST(CacheEntry, K26_EveryTruncationIsSeen) {
  const std::string whole = golden("entry_v1.entry");
  ASSERT_EQ(whole.size(), 273U);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::string problem;
    EXPECT_FALSE(parse_entry(whole.substr(0, size), problem).has_value()) << size;
    EXPECT_FALSE(problem.empty()) << size;
  }
}

TEST(CacheEntry, K26_EveryChangedByteIsSeen) {
  const std::string whole = golden("entry_v1.entry");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      std::string problem;
      EXPECT_FALSE(parse_entry(damaged, problem).has_value()) << at << ' ' << mask;
      EXPECT_FALSE(problem.empty()) << at;
    }
  }
}

TEST(CacheEntry, K26_AppendedBytesAreSeen) {
  const std::string whole = golden("entry_v1.entry");
  for (const std::string& more : {std::string(1, '\0'), std::string("x"), std::string(4096, '\0'), whole}) {
    std::string problem;
    EXPECT_FALSE(parse_entry(whole + more, problem).has_value()) << more.size();
    EXPECT_EQ(problem, "it is longer than its header says");
  }
}

TEST(CacheEntry, AnotherVersionIsNamed) {
  std::string other = golden("entry_v1.entry");
  other[8] = 2;
  std::string problem;
  EXPECT_FALSE(parse_entry(other, problem).has_value());
  EXPECT_EQ(problem, "its format has version 2, this packjit reads 1");
}

TEST(CacheEntry, K26_EveryDamageOfABundleIsSeen) {
  const std::string whole = golden("bundle_v1.bundle");
  std::string problem;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_bundle(whole.substr(0, size), problem).has_value()) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_FALSE(parse_bundle(damaged, problem).has_value()) << at;
  }
  EXPECT_FALSE(parse_bundle(whole + "x", problem).has_value());
  EXPECT_EQ(problem, "1 bytes follow its 2 entries");
}

}  // namespace
}  // namespace packjit
