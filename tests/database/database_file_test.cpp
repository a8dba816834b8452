#include "runtime/database_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/digest.hpp"
#include "tests/cache/cache_helpers.hpp"
#include "tests/cache/fake_file_system.hpp"
#include "tests/database/database_helpers.hpp"
#include "tests/message_of.hpp"

// On a file system in memory that fails when told to; database_processes_test.cpp uses the machine's own.
namespace packjit::test {
namespace {

class DatabaseFiles : public testing::Test {
 public:
  DatabaseFile file() {
    return {files, "/data", database_stem(test_gpu()), test_gpu(), clock.clock(), records.callback()};
  }
  /// What a new process finds.
  std::string contents() { return write_database(file().load()); }
  std::string& document() { return files.files.at(kStem + ".json").bytes; }
  std::string& journal() { return files.files.at(kStem + ".journal").bytes; }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& [name, file] : files.files) found.push_back(name);
    return found;
  }

  static inline const std::string kStem = "sm_90_132sm_" + database_stem(test_gpu()).substr(12);
  FakeFileSystem files;
  FakeClock clock;
  Records records;
};

TEST_F(DatabaseFiles, AppendsCompactsAndReadsAgain) {
  EXPECT_TRUE(file().append(numbered_entry(1)));
  EXPECT_TRUE(file().append(numbered_entry(2)));
  EXPECT_TRUE(file().append(test_failure()));
  EXPECT_EQ(names(), std::vector<std::string>{kStem + ".journal"});
  const Database loaded = file().load();
  ASSERT_EQ(loaded.entries.size(), 2U);
  EXPECT_EQ(loaded.entries[0].tried + loaded.entries[1].tried, 3);
  EXPECT_EQ(loaded.failed.size(), 1U);
  EXPECT_EQ(loaded.origin, "/data/" + kStem + ".json");
  const std::string before = contents();
  EXPECT_TRUE(file().compact());
  EXPECT_EQ(names(), std::vector<std::string>{kStem + ".json"});
  EXPECT_EQ(document(), before);
  EXPECT_EQ(contents(), before);
  EXPECT_TRUE(file().compact());  // again, with nothing to do
  EXPECT_EQ(document(), before);
  EXPECT_TRUE(records.warnings().empty());
  EXPECT_EQ(database_stems(files, "/data"), std::vector<std::string>{kStem});
}

TEST_F(DatabaseFiles, TheNameFollowsTheModelAndNotTheLabel) {
  GpuProperties other = test_gpu();
  other.name = "Another label";
  EXPECT_EQ(database_stem(other), database_stem(test_gpu()));
  other.memory_clock_mhz = 3201;
  EXPECT_NE(database_stem(other), database_stem(test_gpu()));
  EXPECT_EQ(database_stem(other).rfind("sm_90_132sm_", 0), 0U);
}

TEST_F(DatabaseFiles, RefusesWhatMustNotBeUsed) {
  Entry entry = numbered_entry(1);
  entry.check.error = 2;
  EXPECT_NE(message_of([&] { file().append(entry); }).find("check.error is 2"), std::string::npos);
  entry = numbered_entry(1);
  entry.gpu.arch = "sm_80";
  EXPECT_NE(message_of([&] { file().append(entry); }).find("it is of another GPU model"), std::string::npos);
  EXPECT_TRUE(files.files.empty());
}

TEST_F(DatabaseFiles, K46_AJournalCutAnywhereLosesTheLastRecordAtMost) {
  std::vector<std::size_t> ends;  // of lines, newlines left out
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(file().append(numbered_entry(i)));
    ends.push_back(journal().size() - 1);
  }
  const std::string whole = journal();
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    journal() = whole.substr(0, length);
    Records own;
    DatabaseFile cut(files, "/data", kStem, test_gpu(), clock.clock(), own.callback());
    const auto left =
        static_cast<std::size_t>(std::ranges::count_if(ends, [&](std::size_t end) { return length >= end; }));
    ASSERT_EQ(cut.load().entries.size(), left) << length;
    // Where a line is cut there is one warning, between lines none.
    const bool between = length == 0 || whole[length - 1] == '\n' || whole[length] == '\n';
    ASSERT_EQ(own.warnings().size(), between ? 0U : 1U) << length;
    // Whoever goes on loses nothing more.
    if (length % 7 != 0) continue;
    ASSERT_TRUE(cut.append(numbered_entry(7)));
    ASSERT_EQ(cut.load().entries.size(), left + 1) << length;
    ASSERT_TRUE(cut.compact());
    ASSERT_EQ(file().load().entries.size(), left + 1) << length;
    files.files.clear();
    files.files[kStem + ".journal"].info = {FileKind::regular, kUser, 0600, 0, 0};
  }
}

TEST_F(DatabaseFiles, K46_ADocumentCutAnywhereIsKeptAside) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  ASSERT_TRUE(file().compact());
  ASSERT_TRUE(file().append(numbered_entry(2)));
  const auto saved = files.files;
  const std::string whole = document();
  for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
    files.files = saved;
    document() = whole.substr(0, length);
    Records own;
    DatabaseFile cut(files, "/data", kStem, test_gpu(), clock.clock(), own.callback());
    ASSERT_EQ(cut.load().entries.size(), 1U) << length;
    ASSERT_EQ(own.warnings().size(), 1U) << length;
    EXPECT_EQ(own.warnings()[0].rfind("the tuning database '/data/" + kStem + ".json' is not used: ", 0), 0U);
    EXPECT_EQ(document(), whole.substr(0, length));
    ASSERT_TRUE(cut.compact());
    ASSERT_EQ(own.warnings().size(), 1U);
    ASSERT_EQ(file().load().entries.size(), 1U);
    const auto aside = std::ranges::find_if(
        files.files, [](const auto& item) { return item.first.find("damaged-") != std::string::npos; });
    ASSERT_NE(aside, files.files.end());
    ASSERT_EQ(aside->second.bytes, whole.substr(0, length));
  }
  EXPECT_EQ(database_stems(files, "/data"), std::vector<std::string>{kStem});
}

TEST_F(DatabaseFiles, K46_ADamagedLineIsSkippedAndKeptAside) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(file().append(numbered_entry(i)));
  const std::size_t at = journal().find("\"tried\":1,");
  ASSERT_NE(at, std::string::npos);
  journal()[at + 8] = '8';
  DatabaseFile damaged = file();
  EXPECT_EQ(damaged.load().entries.size(), 2U);
  EXPECT_EQ(damaged.load().entries.size(), 2U);
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_EQ(records.warnings()[0], "line 4 of the tuning journal '/data/" + kStem +
                                       ".journal' is damaged and not used: its contents do not fit its checksum. The "
                                       "next compaction keeps it in '" +
                                       kStem + ".damaged'");
  EXPECT_TRUE(damaged.compact());
  EXPECT_NE(files.files.at(kStem + ".damaged").bytes.find("\"tried\":8,"), std::string::npos);
  EXPECT_EQ(file().load().entries.size(), 2U);
}

TEST_F(DatabaseFiles, K46_ALineThatSomebodyCouldNotFinishIsDroppedWhereverItStands) {
  ASSERT_TRUE(file().append(numbered_entry(0)));
  const std::size_t whole = journal().size();
  ASSERT_TRUE(file().append(numbered_entry(1)));
  journal().resize(whole + 100);
  ASSERT_TRUE(file().append(numbered_entry(2)));
  DatabaseFile torn = file();
  EXPECT_EQ(torn.load().entries.size(), 2U);
  EXPECT_TRUE(torn.compact());
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_EQ(records.warnings()[0], "line 4 of the tuning journal '/data/" + kStem +
                                       ".journal' is not whole and is dropped: whoever wrote it was ended meanwhile, "
                                       "and its one record is lost");
  EXPECT_FALSE(files.files.contains(kStem + ".damaged"));
  EXPECT_EQ(file().load().entries.size(), 2U);
}

TEST_F(DatabaseFiles, ANewerDocumentIsNeverReplaced) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  ASSERT_TRUE(file().compact());
  const std::size_t at = document().find("\"major\": 1");
  ASSERT_NE(at, std::string::npos);
  document()[at + 9] = '2';
  const std::string newer = document();
  DatabaseFile mine = file();
  EXPECT_TRUE(mine.load().entries.empty());
  EXPECT_TRUE(mine.append(numbered_entry(2)));
  EXPECT_FALSE(mine.compact());
  EXPECT_FALSE(mine.compact());
  EXPECT_EQ(document(), newer);
  EXPECT_EQ(mine.load().entries.size(), 1U);  // of the journal
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_EQ(records.warnings()[0],
            "the tuning database '/data/" + kStem +
                ".json' is not used and is left as it is: it has version 2.0, and this packjit reads versions up to "
                "1.x; use a newer packjit for it");
}

TEST_F(DatabaseFiles, ALineOfANewerVersionStays) {
  Database record;
  add(record, numbered_entry(1));
  std::string payload = write_database(record, DatabaseLayout::single);
  payload.replace(payload.find("\"major\":1"), 9, "\"major\":2");
  ASSERT_TRUE(file().append(numbered_entry(2)));
  const std::string summed = "\"record\":" + payload + "}";
  const std::string line = "{\"sum\":\"" + digest_hex(summed) + "\"," + summed + "\n";
  journal() += line;
  EXPECT_EQ(file().load().entries.size(), 1U);
  EXPECT_FALSE(file().compact());
  EXPECT_EQ(file().load().entries.size(), 1U);
  EXPECT_NE(files.files.at(kStem + ".journal.old").bytes.find(line), std::string::npos);
}

TEST_F(DatabaseFiles, ADocumentOfAnotherGpuIsNotUsed) {
  Entry other = numbered_entry(1);
  other.gpu.multiprocessors = 114;
  Database database;
  add(database, other);
  files.files[kStem + ".json"].bytes = write_database(database);
  files.files[kStem + ".json"].info = {FileKind::regular, kUser, 0600, 0, 0};
  EXPECT_TRUE(file().load().entries.empty());
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("it is of another GPU model (Test GPU)"), std::string::npos);
}

// A process that is killed makes no further call: the same as if every call failed from then on.
TEST_F(DatabaseFiles, K46_ACompactionThatIsKilledAnywhereLosesNothing) {
  for (const bool with_damage : {false, true}) {
    for (const bool left_over : {false, true}) {
      files.files.clear();
      ASSERT_TRUE(file().append(numbered_entry(1)));
      ASSERT_TRUE(file().compact());
      if (with_damage) document() += "x";
      ASSERT_TRUE(file().append(numbered_entry(2)));
      if (left_over) files.files[kStem + ".journal.old"] = files.files.at(kStem + ".journal");
      if (left_over) journal().clear();
      ASSERT_TRUE(file().append(numbered_entry(3)));
      const auto saved = files.files;
      const std::string before = contents();
      bool done = false;
      int calls = 0;
      for (; !done; ++calls) {
        files.files = saved;
        files.calls_left = calls;
        done = file().compact();
        files.calls_left = 1'000'000;
        files.locked.clear();
        ASSERT_EQ(contents(), before) << calls;
        ASSERT_TRUE(file().compact());
        ASSERT_EQ(contents(), before) << calls;
        ASSERT_EQ(document(), before) << calls;
      }
      EXPECT_GT(calls, 8);
    }
  }
}

TEST_F(DatabaseFiles, AFullDiskKeepsWhatIsThere) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  const std::size_t line = journal().size();
  for (std::size_t room = 0; room < line; room += 50) {
    files.room = files.room - files.room_left() + room;
    DatabaseFile full = file();
    EXPECT_FALSE(full.append(numbered_entry(2)));
    EXPECT_FALSE(full.compact());
    files.room = 1U << 30U;
    EXPECT_EQ(file().load().entries.size(), 1U);
  }
  EXPECT_TRUE(file().append(numbered_entry(2)));
  EXPECT_TRUE(file().compact());
  EXPECT_EQ(file().load().entries.size(), 2U);
}

TEST_F(DatabaseFiles, WithoutAFolderThereIsOneWarningOnceSomethingIsToBeWritten) {
  files.exists = false;
  files.faults["make"] = std::errc::permission_denied;
  DatabaseFile none = file();
  EXPECT_TRUE(none.load().entries.empty());
  EXPECT_TRUE(none.compact());
  EXPECT_TRUE(records.warnings().empty());
  EXPECT_FALSE(none.append(numbered_entry(1)));
  EXPECT_FALSE(none.append(numbered_entry(2)));
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_EQ(records.warnings()[0],
            "cannot make the folder of tuning databases '/data': Permission denied. What was tuned on this machine is "
            "not used, and nothing is written; PACKJIT_DATABASE_DIR names another folder");
}

TEST_F(DatabaseFiles, AReadOnlyFolderIsReadWithOneWarningForWriting) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  ASSERT_TRUE(file().compact());
  for (const char* operation : {"append", "rename", "create", "lock", "remove"}) {
    files.faults[operation] = std::errc::read_only_file_system;
  }
  DatabaseFile mine = file();
  EXPECT_EQ(mine.load().entries.size(), 1U);
  EXPECT_TRUE(records.warnings().empty());
  EXPECT_FALSE(mine.append(numbered_entry(2)));
  EXPECT_FALSE(mine.append(numbered_entry(3)));
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("Read-only file system. It is lost when this program ends"), std::string::npos);
}

TEST_F(DatabaseFiles, K46_WithoutALockRecordsStayInTheJournal) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  files.faults["lock"] = std::errc::no_lock_available;
  EXPECT_FALSE(file().compact());
  EXPECT_EQ(clock.slept_ms, 0);
  files.faults.clear();
  files.locked[kStem + ".lock"] = true;  // another process compacts
  EXPECT_FALSE(file().compact());
  EXPECT_EQ(clock.slept_ms, 10'000);
  EXPECT_TRUE(file().append(numbered_entry(2)));
  EXPECT_EQ(file().load().entries.size(), 2U);
  ASSERT_EQ(records.warnings().size(), 2U);
  EXPECT_EQ(records.warnings()[0], "the lock '/data/" + kStem +
                                       ".lock' of the tuning database could not be taken; records stay in its "
                                       "journal, where they are used too");
}

TEST_F(DatabaseFiles, RewriteTakesRecordsAway) {
  ASSERT_TRUE(file().append(numbered_entry(1)));
  ASSERT_TRUE(file().compact());
  ASSERT_TRUE(file().append(numbered_entry(2)));
  EXPECT_TRUE(file().rewrite([](Database& database) {
    EXPECT_EQ(database.entries.size(), 2U);
    std::erase_if(database.entries, [](const Entry& entry) { return entry.tried == 1; });
  }));
  const Database loaded = file().load();
  ASSERT_EQ(loaded.entries.size(), 1U);
  EXPECT_EQ(loaded.entries[0].tried, 2);
}

TEST(DatabaseLocation, TakesTheFirstThatIsSet) {
  const auto with = [](const char* folder, const char* data, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("PACKJIT_DATABASE_DIR", folder);
    set("XDG_DATA_HOME", data);
    set("HOME", home);
    return database_location();
  };
  EXPECT_EQ(with("/a b", "/data", "/h").folder, "/a b");
  EXPECT_EQ(with(nullptr, "/data", "/h").folder, "/data/packjit");
  EXPECT_EQ(with(nullptr, "relative", "/h").folder, "/h/.local/share/packjit");
  EXPECT_EQ(with("", "", "/h").folder, "/h/.local/share/packjit");
  EXPECT_TRUE(with("off", "/data", "/h").off);
  EXPECT_EQ(with("off", "/data", "/h").folder, "");
  EXPECT_EQ(with(nullptr, nullptr, nullptr).problem,
            "none of PACKJIT_DATABASE_DIR, XDG_DATA_HOME and HOME is set; set PACKJIT_DATABASE_DIR to a folder, or to "
            "off");
  // A relative folder would be another one in each working directory.
  EXPECT_EQ(with("Off", "/data", "/h").folder, "");
  EXPECT_EQ(with("Off", "/data", "/h").problem,
            "PACKJIT_DATABASE_DIR is 'Off', a relative path, which is another folder in each working directory; set "
            "PACKJIT_DATABASE_DIR to the absolute path of a folder, or to off");
}

}  // namespace
}  // namespace packjit::test
