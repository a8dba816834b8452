#include "runtime/disk_cache.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/cache/cache_helpers.hpp"
#include "tests/cache/fake_file_system.hpp"

namespace packjit::test {
namespace {

constexpr std::int64_t kDay = 86'400;  // seconds

class DiskCacheTest : public testing::Test {
 public:
  /// A cache of this process, as another process would open it: nothing in memory yet.
  CompileCache cache(const std::string& build = "build-1") {
    return {compiler.compiler(build), open_disk(files, records, clock.clock()), records.callback()};
  }
  HitKind ask(const Source& source = kSource, const std::string& arch = "sm_90") {
    return cache().get(source, arch).how;
  }
  std::string why_refused() {
    std::string problem;
    const auto disk = DiskCache::open(files, {"/cache", kDefaultCacheBytes, ""}, clock.clock(), records.callback(),
                                      DiskCache::Missing::make, problem);
    return disk == nullptr ? problem : "it was opened";
  }
  FakeFileSystem::File& only_file() {
    EXPECT_EQ(files.files.size(), 1U);
    return files.files.begin()->second;
  }

  FakeFileSystem files;
  FakeClock clock;
  Records records;
  CountingCompiler compiler;
};

TEST_F(DiskCacheTest, WhatOneProcessCompiledTheNextReads) {
  EXPECT_EQ(ask(), HitKind::compiled);
  const CachedCompile found = cache().get(kSource, "sm_90");
  EXPECT_EQ(found.how, HitKind::disk);
  EXPECT_EQ(found.result->cubin, "cubin of kernel text for sm_90");
  EXPECT_EQ(found.result->ptx, "PTX of kernel text for sm_90");
  EXPECT_EQ(found.result->log, "a log");
  EXPECT_EQ(found.result->arch, "sm_90");
  EXPECT_EQ(found.result->nvrtc_version, "13.0");
  EXPECT_EQ(found.result->options, (std::vector<std::string>{"--gpu-architecture=sm_90", "--std=c++17"}));
  EXPECT_EQ(found.result->seconds, 0.25);
  EXPECT_EQ(compiler.count, 1);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(DiskCacheTest, K25_AFailedCompileIsNeverWritten) {
  const Source wrong{"edited", "undeclared();"};
  for (int i = 1; i <= 3; ++i) {
    const CachedCompile found = cache().get(wrong, "sm_90");
    EXPECT_FALSE(found.result->ok);
    ASSERT_EQ(found.result->failing_lines.size(), 1U);
    EXPECT_EQ(found.result->failing_lines[0].text, "undeclared();");
    EXPECT_EQ(compiler.count, i);
  }
  EXPECT_TRUE(files.files.empty());
  EXPECT_EQ(files.calls["create"], 0);
}

TEST_F(DiskCacheTest, K26_ADamagedEntryIsAMissOneWarningAndRebuilt) {
  ask();
  const std::string whole = only_file().bytes;
  const auto expect_rebuilt = [&](const std::string& damaged) {
    only_file().bytes = damaged;
    const auto warnings = records.warnings().size();
    const int compiles = compiler.count;
    EXPECT_EQ(ask(), HitKind::compiled);
    EXPECT_EQ(compiler.count, compiles + 1);
    EXPECT_EQ(records.warnings().size(), warnings + 1);
    EXPECT_EQ(only_file().bytes, whole);
  };
  for (std::size_t size = 0; size < whole.size(); ++size) expect_rebuilt(whole.substr(0, size));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    expect_rebuilt(flipped);
  }
  expect_rebuilt(whole + "x");
  EXPECT_EQ(ask(), HitKind::disk);
  EXPECT_NE(records.warnings().back().find("it is longer than its header says. The kernel is compiled anew"),
            std::string::npos)
      << records.warnings().back();
}

TEST_F(DiskCacheTest, AnEntryUnderAnothersNameIsAMiss) {
  ask();
  const std::string other = only_file().bytes;
  files.files.clear();
  ask(kSource, "sm_80");
  only_file().bytes = other;
  EXPECT_EQ(ask(kSource, "sm_80"), HitKind::compiled);
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("another kernel than its name says"), std::string::npos);
}

TEST_F(DiskCacheTest, K27_TheLoserOfARenameKeepsItsOwnImage) {
  for (const char* operation : {"rename", "create", "write", "sync"}) {
    files.faults = {{operation, std::errc::io_error}};
    const CachedCompile found = cache().get(kSource, "sm_90");
    EXPECT_EQ(found.how, HitKind::compiled) << operation;
    EXPECT_EQ(found.result->cubin, "cubin of kernel text for sm_90") << operation;
    EXPECT_TRUE(files.files.empty()) << operation << " left a file";
  }
  EXPECT_EQ(records.warnings().size(), 4U);  // one a process
}

TEST_F(DiskCacheTest, K27_AFileThatIsNotThereAfterItsRenameIsNotMissed) {
  files.loses_renamed = true;
  CompileCache first = cache();
  const CachedCompile found = first.get(kSource, "sm_90");
  EXPECT_EQ(found.result->cubin, "cubin of kernel text for sm_90");
  EXPECT_EQ(first.get(kSource, "sm_90").how, HitKind::memory);
  EXPECT_EQ(compiler.count, 1);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(DiskCacheTest, K27_WhoeverRenamesLastWins) {
  CompileCache first = cache();
  files.faults = {{"lock", std::errc::no_lock_available}, {"read", std::errc::no_such_file_or_directory}};
  // Both miss, both compile, both publish the same name.
  EXPECT_EQ(first.get(kSource, "sm_90").how, HitKind::compiled);
  EXPECT_EQ(ask(), HitKind::compiled);
  files.faults.clear();
  EXPECT_EQ(ask(), HitKind::compiled);
  EXPECT_EQ(ask(), HitKind::disk);
}

TEST_F(DiskCacheTest, K28_GoesOnWhereLocksDoNotWork) {
  files.faults = {{"lock", std::errc::no_lock_available}};
  EXPECT_EQ(ask(), HitKind::compiled);
  EXPECT_EQ(ask(), HitKind::disk);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(DiskCacheTest, K28_AnOwnerThatNeverEndsIsNotWaitedForForever) {
  const auto disk = open_disk(files, records, clock.clock());
  std::optional<CacheEntry> entry;
  const CacheKey key = cache_key(compiler.compiler(), kSource, "sm_90");
  const auto held = disk->lock(key, kSource.text, entry);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(ask(), HitKind::compiled);
  EXPECT_EQ(clock.slept_ms, 120'000);
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("more than 120 s"), std::string::npos);
  EXPECT_EQ(ask(), HitKind::disk);
}

TEST_F(DiskCacheTest, K31_WhatCannotBeWrittenIsOneWarningAndMemoryOnly) {
  for (const std::errc fault : {std::errc::read_only_file_system, std::errc::no_such_file_or_directory,
                                std::errc::permission_denied, std::errc::no_space_on_device}) {
    files.faults = {{"create", fault}, {"lock", fault}};
    const auto before = records.warnings().size();
    CompileCache one = cache();
    for (const char* arch : {"sm_80", "sm_90", "sm_100"}) {
      EXPECT_EQ(one.get(kSource, arch).how, HitKind::compiled);
      EXPECT_EQ(one.get(kSource, arch).how, HitKind::memory);
    }
    EXPECT_EQ(records.warnings().size(), before + 1);
  }
}

TEST_F(DiskCacheTest, AFileThatTheLimitRefusesNamesTheSetting) {
  std::string problem;
  CompileCache small(
      compiler.compiler(),
      DiskCache::open(files, {"/cache", 50, ""}, clock.clock(), records.callback(), DiskCache::Missing::make, problem),
      records.callback());
  EXPECT_EQ(small.get(kSource, "sm_90").how, HitKind::compiled);
  EXPECT_TRUE(files.files.empty());
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("bytes in '/cache': PACKJIT_CACHE_BYTES, which limits all its files together, "
                                       "is 50; set it to more. Kernels are kept in memory only"),
            std::string::npos)
      << records.warnings()[0];
}

TEST_F(DiskCacheTest, K31_AFullDiskLeavesNoPartOfAnEntry) {
  files.room = 100;
  EXPECT_EQ(ask(), HitKind::compiled);
  EXPECT_TRUE(files.files.empty());
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("Kernels are kept in memory only"), std::string::npos);
  files.room = 10'000;
  EXPECT_EQ(ask(), HitKind::compiled);
  EXPECT_EQ(ask(), HitKind::disk);
}

TEST_F(DiskCacheTest, K31_AFolderThatCannotBeMadeOrOpenedIsRefused) {
  files.exists = false;
  files.faults = {{"make", std::errc::read_only_file_system}};
  EXPECT_EQ(why_refused(), "cannot make the folder '/cache': Read-only file system");
  files.faults = {{"open", std::errc::not_a_directory}};
  EXPECT_EQ(why_refused(), "cannot open the folder '/cache': Not a directory");
}

TEST_F(DiskCacheTest, K32_AFolderThatOthersCanWriteIsRefused) {
  for (const unsigned permissions : {0777U, 0770U, 0720U, 0702U}) {
    files.folder.permissions = permissions;
    EXPECT_NE(why_refused().find("cannot trust the folder '/cache': other users can write to it"), std::string::npos);
  }
  files.folder.permissions = 0755;
  EXPECT_EQ(why_refused(), "it was opened");
}

TEST_F(DiskCacheTest, K32_AFolderOfAnotherUserIsRefused) {
  files.folder.owner = 0;
  EXPECT_EQ(
      why_refused(),
      "cannot trust the folder '/cache': it belongs to user 0, not to user 1000 who runs this, and code is loaded "
      "from it");
  files.folder.owner = kUser;
  files.path = {FileKind::link, 1001, 0777, 0, 0};
  EXPECT_NE(why_refused().find("it belongs to user 1001"), std::string::npos);
  files.path.owner = kUser;
  EXPECT_EQ(why_refused(), "it was opened");
}

TEST_F(DiskCacheTest, K32_AnEntryThatOthersCanWriteIsNotLoaded) {
  ask();
  only_file().info.permissions = 0666;
  EXPECT_EQ(ask(), HitKind::compiled);
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("other users can write to it (permissions 666)"), std::string::npos);
  EXPECT_EQ(only_file().info.permissions, 0600U);
}

TEST_F(DiskCacheTest, TheEntryUsedLongestAgoMakesRoom) {
  ask(kSource, "sm_75");
  const auto one = static_cast<std::int64_t>(only_file().bytes.size());
  const auto with_room = [&](const std::string& arch) {
    CompileCache limited(compiler.compiler(), open_disk(files, records, clock.clock(), "/cache", 3 * one),
                         records.callback());
    return limited.get(kSource, arch).how;
  };
  clock.seconds += 2 * kDay;
  EXPECT_EQ(with_room("sm_80"), HitKind::compiled);
  clock.seconds += 2 * kDay;
  EXPECT_EQ(with_room("sm_90"), HitKind::compiled);
  clock.seconds += 2 * kDay;
  EXPECT_EQ(with_room("sm_75"), HitKind::disk);  // used again, so sm_80 is the oldest now
  EXPECT_EQ(with_room("sm_86"), HitKind::compiled);
  EXPECT_EQ(files.files.size(), 3U);
  EXPECT_EQ(with_room("sm_75"), HitKind::disk);
  EXPECT_EQ(with_room("sm_90"), HitKind::disk);
  EXPECT_EQ(with_room("sm_80"), HitKind::compiled);
}

TEST_F(DiskCacheTest, TheEntryJustWrittenNeverMakesRoom) {
  ask();
  const auto one = static_cast<std::int64_t>(only_file().bytes.size());
  // Of the same moment, whose names sort either way; then behind one whose stamp is from the future.
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_90", "sm_100"}) {
    CompileCache limited(compiler.compiler(), open_disk(files, records, clock.clock(), "/cache", one + one / 2),
                         records.callback());
    (void)limited.get(kSource, arch);
    EXPECT_EQ(files.files.size(), 1U);
    EXPECT_EQ(ask(kSource, arch), HitKind::disk) << arch;
    if (std::string_view(arch) == "sm_90") files.files.begin()->second.info.last_use += kSecond;
  }
}

TEST_F(DiskCacheTest, AUseIsNotedOnceADay) {
  ask();
  files.calls.clear();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(), HitKind::disk);
  EXPECT_EQ(files.calls["set_last_use"], 0);
  clock.seconds += kDay;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(), HitKind::disk);
  EXPECT_EQ(files.calls["set_last_use"], 1);
  clock.seconds -= 10 * kDay;  // a clock that was set back
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(), HitKind::disk);
  EXPECT_EQ(files.calls["set_last_use"], 2);
}

TEST_F(DiskCacheTest, FilesOfAKilledWriterAreRemovedAfterAnHour) {
  const std::string left = std::string(32, 'a') + ".123-0.tmp";
  files.files[left].info.last_use = clock.seconds * kSecond;
  files.files["notes.tmp"].info.last_use = 0;  // not the cache's own
  clock.seconds += 3600;
  ask(kSource, "sm_80");
  EXPECT_TRUE(files.files.contains(left));
  clock.seconds += 1;
  ask(kSource, "sm_90");
  EXPECT_FALSE(files.files.contains(left));
  EXPECT_TRUE(files.files.contains("notes.tmp"));
}

TEST_F(DiskCacheTest, ClearRemovesOnlyItsOwnFiles) {
  ask(kSource, "sm_80");
  ask(kSource, "sm_90");
  files.files[std::string(32, 'a') + ".lock"] = {};
  files.files[std::string(32, 'a') + ".123-0.tmp"] = {};
  files.files["my.entry"] = {};
  EXPECT_EQ(open_disk(files, records, clock.clock())->clear().entries, 2);
  ASSERT_EQ(files.files.size(), 1U);
  EXPECT_TRUE(files.files.contains("my.entry"));
}

const CheckRecord kCheck{"ssm_pack_fwd d_state=16 block=128", "84eadcf8a308080f50441c2fadf481e9", "sm_90", "13.0"};

TEST_F(DiskCacheTest, ASelfCheckIsRememberedForTheNextProcess) {
  EXPECT_FALSE(cache().has_passed(kCheck));
  cache().remember(kCheck);
  EXPECT_TRUE(cache().has_passed(kCheck));
  EXPECT_EQ(files.calls["read"], 1 + 1 + 1);  // the first question, what was written, the second question
  for (CheckRecord other : {kCheck, kCheck, kCheck, kCheck}) {
    static int field = 0;
    std::string* const fields[] = {&other.kernel, &other.images, &other.arch, &other.driver};
    *fields[field++] += "0";
    EXPECT_FALSE(cache().has_passed(other));
  }
  // What the process remembers needs no file.
  CompileCache one = cache();
  one.remember(kCheck);
  files.files.clear();
  EXPECT_TRUE(one.has_passed(kCheck));
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(DiskCacheTest, K26_ADamagedSelfCheckIsMadeAgain) {
  cache().remember(kCheck);
  const std::string whole = only_file().bytes;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    only_file().bytes = whole.substr(0, length);
    ASSERT_FALSE(cache().has_passed(kCheck)) << length;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    only_file().bytes = whole;
    only_file().bytes[at] ^= 1;
    ASSERT_FALSE(cache().has_passed(kCheck)) << at;
  }
  EXPECT_NE(records.warnings().at(0).find("is not used: its contents do not have the digest in its name. The kernel is "
                                          "checked again"),
            std::string::npos)
      << records.warnings()[0];
  cache().remember(kCheck);
  EXPECT_TRUE(cache().has_passed(kCheck));
}

TEST_F(DiskCacheTest, K32_ASelfCheckThatOthersCouldWriteIsNotUsed) {
  cache().remember(kCheck);
  only_file().info.permissions = 0666;
  EXPECT_FALSE(cache().has_passed(kCheck));
  only_file().info.permissions = 0600;
  only_file().info.owner = kUser + 1;
  EXPECT_FALSE(cache().has_passed(kCheck));
}

TEST_F(DiskCacheTest, SelfChecksCountAndGoAsEntriesDo) {
  cache().remember(kCheck);
  ask();
  const auto disk = open_disk(files, records, clock.clock());
  EXPECT_EQ(disk->usage().entries, 1);
  EXPECT_EQ(disk->usage().checks, 1);
  int visited = 0;
  disk->for_each_check([&](const DiskCache::StoredCheck& stored) {
    EXPECT_EQ(stored.text, check_text(kCheck));
    EXPECT_EQ(stored.problem, "");
    ++visited;
  });
  EXPECT_EQ(visited, 1);
  // The one used longest ago makes room.
  clock.seconds += 2 * kDay;
  ask();
  const std::int64_t bytes = disk->usage().bytes;
  clock.seconds += kDay;
  CompileCache tight(compiler.compiler(), open_disk(files, records, clock.clock(), "/cache", bytes), {});
  static_cast<void>(tight.get(kSource, "sm_80"));
  EXPECT_EQ(open_disk(files, records, clock.clock())->usage().checks, 0);
  cache().remember(kCheck);
  const DiskCache::Usage removed = disk->clear();
  EXPECT_EQ(removed.checks, 1);
  EXPECT_TRUE(files.files.empty());
}

TEST_F(DiskCacheTest, AnEntryLargerThanTheWholeCacheIsNotWritten) {
  CompileCache tiny(compiler.compiler(), open_disk(files, records, clock.clock(), "/cache", 10), records.callback());
  EXPECT_TRUE(tiny.get(kSource, "sm_90").result->ok);
  EXPECT_TRUE(files.files.empty());
  EXPECT_EQ(records.warnings().size(), 1U);
}

}  // namespace
}  // namespace packjit::test
