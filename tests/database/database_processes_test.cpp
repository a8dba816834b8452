#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "runtime/database_file.hpp"
#include "tests/cache/cache_helpers.hpp"
#include "tests/database/database_helpers.hpp"

// The machine's own file system, and processes that are forked from the test.
namespace packjit::test {
namespace {

namespace fs = std::filesystem;

class DatabaseProcesses : public testing::Test {
 public:
  DatabaseProcesses() { renew(); }
  ~DatabaseProcesses() override { remove(); }
  DatabaseProcesses(const DatabaseProcesses&) = delete;
  DatabaseProcesses& operator=(const DatabaseProcesses&) = delete;

  void renew() {
    remove();
    std::string name = testing::TempDir() + "packjit-database-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder = name;
  }
  void remove() const {
    std::error_code ignored;
    if (!folder.empty()) fs::remove_all(folder, ignored);
  }
  DatabaseFile file() {
    return {posix_file_system(), folder, database_stem(test_gpu()), test_gpu(), system_clock(), records.callback()};
  }

  std::string folder;
  Records records;
};

pid_t start(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  return child;
}
int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(DatabaseProcesses, WhatLiesInAFilesPlaceIsNamed) {
  const std::string stem = folder + "/" + database_stem(test_gpu());
  fs::create_symlink("elsewhere", stem + ".journal");
  fs::create_directory(stem + ".json");
  DatabaseFile mine = file();
  EXPECT_TRUE(mine.load().entries.empty());
  EXPECT_FALSE(mine.append(numbered_entry(1)));
  const std::vector<std::string> expected = {
      "the journal '" + stem +
          ".journal' of the tuning database cannot be read: it is a link, and links are not followed",
      "the tuning database '" + stem + ".json' cannot be read: it is a folder",
      "a tuned entry cannot be written to '" + stem +
          ".journal': it is a link, and links are not followed. It is lost when this program ends; "
          "PACKJIT_DATABASE_DIR names another folder"};
  EXPECT_EQ(records.warnings(), expected);
  EXPECT_FALSE(fs::exists(folder + "/elsewhere"));
}

TEST_F(DatabaseProcesses, WhereDamagedLinesCannotBeKeptTheirFileIsNamed) {
  const std::string stem = folder + "/" + database_stem(test_gpu());
  ASSERT_TRUE(file().append(numbered_entry(1)));
  std::ofstream(stem + ".journal", std::ios::app) << "damaged\n\n";
  fs::create_symlink("elsewhere", stem + ".damaged");
  EXPECT_FALSE(file().compact());
  EXPECT_EQ(records.warnings().back(), "the tuning database '" + stem +
                                           ".damaged' cannot be written: it is a link, and links are not followed. Its "
                                           "journal is kept, nothing is lost");
  EXPECT_EQ(file().load().entries.size(), 1U);
}

// Each record whose append() has returned stays, whatever the writer was doing when it was killed.
TEST_F(DatabaseProcesses, K46_KilledWhileWriting200Times) {
  constexpr int kKills = 200, kKillsAFolder = 20, kRecordsAKill = 40;
  std::mt19937 random(7);
  int acknowledged = 0, in_flight = 0;
  std::vector<bool> written;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    if (kill_number % kKillsAFolder == 0) {
      renew();
      written.assign(kKillsAFolder * kRecordsAKill, false);
    }
    const int first = kill_number % kKillsAFolder * kRecordsAKill;
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    const pid_t writer = start([&] {
      DatabaseFile mine = file();
      for (int n = 0; n < kRecordsAKill; ++n) {
        if (!mine.append(numbered_entry(first + n)) || write(done[1], "x", 1) != 1) return 1;
        if (n % 3 == 2 && !mine.compact()) return 2;
      }
      pause();
      return 0;
    });
    close(done[1]);
    char byte = 0;
    int count = 0;
    // By what it has done, not by time alone: a slow machine writes few records in it.
    for (const int wanted = 1 + static_cast<int>(random() % 8); count < wanted; ++count) {
      ASSERT_EQ(read(done[0], &byte, 1), 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    kill(writer, SIGKILL);
    ASSERT_EQ(status_of(writer), -1);
    while (read(done[0], &byte, 1) == 1) ++count;
    close(done[0]);
    for (int n = 0; n < count; ++n) written[static_cast<std::size_t>(first + n)] = true;
    acknowledged += count;
    in_flight += count < kRecordsAKill ? 1 : 0;

    const Database found = file().load();
    std::vector<bool> there(written.size(), false);
    for (const Entry& entry : found.entries) there[static_cast<std::size_t>(entry.tried)] = true;
    for (std::size_t n = 0; n < written.size(); ++n) {
      ASSERT_TRUE(!written[n] || there[n]) << "record " << n << " is lost";
      // Beyond what was acknowledged there is the one record that was being written.
      if (!written[n] && there[n]) {
        ASSERT_EQ(n, static_cast<std::size_t>(first + count));
        written[n] = true;
      }
    }
  }
  EXPECT_GT(acknowledged, 2 * kKills);
  EXPECT_GT(in_flight, kKills / 2);  // otherwise the test would have missed what it is about
  for (const std::string& warning : records.warnings()) {
    EXPECT_NE(warning.find("is not whole and is dropped"), std::string::npos) << warning;
  }
}

TEST_F(DatabaseProcesses, K46_EightWritersAtOnceLoseNothing) {
  constexpr int kWriters = 8, kRecords = 40;
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(start([&, writer] {
      Records own;
      DatabaseFile mine(posix_file_system(), folder, database_stem(test_gpu()), test_gpu(), system_clock(),
                        own.callback());
      for (int n = 0; n < kRecords; ++n) {
        if (!mine.append(numbered_entry(writer * kRecords + n))) return 1;
        // On a busy machine the others can have the lock for longer than compact() waits.
        for (int tries = 30; n % 4 == 3 && !mine.compact(); --tries) {
          if (tries == 0) return 2;
        }
      }
      const auto is_about_the_lock = [](const std::string& warning) {
        return warning.find(".lock' of the tuning database could not be taken") != std::string::npos;
      };
      return std::ranges::all_of(own.warnings(), is_about_the_lock) ? 0 : 3;
    }));
  }
  std::size_t seen = 0;
  int reads = 0;
  for (int running = kWriters; running > 0; ++reads) {
    const std::size_t now = file().load().entries.size();
    EXPECT_GE(now, seen);
    seen = now;
    int status = 0;
    while (running > 0 && waitpid(-1, &status, WNOHANG) > 0) {
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 0);
      --running;
    }
  }
  EXPECT_GT(reads, 10);
  const Database all = file().load();
  ASSERT_EQ(all.entries.size(), static_cast<std::size_t>(kWriters * kRecords));
  EXPECT_TRUE(records.warnings().empty());
  EXPECT_TRUE(file().compact());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  EXPECT_EQ(file().load().entries.size(), all.entries.size());
}

// Where locks do not work nobody compacts; lines that others add meanwhile stay.
TEST_F(DatabaseProcesses, K46_AppendingNeedsNoLock) {
  std::vector<pid_t> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.push_back(start([&, writer] {
      DatabaseFile mine = file();
      for (int n = 0; n < 50; ++n) {
        if (!mine.append(numbered_entry(writer * 50 + n))) return 1;
      }
      return 0;
    }));
  }
  for (const pid_t writer : writers) EXPECT_EQ(status_of(writer), 0);
  EXPECT_EQ(file().load().entries.size(), 200U);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(DatabaseProcesses, AFolderWithOtherScriptsInItsName) {
  folder += "/Größe mit Leerzeichen/缓存";
  EXPECT_TRUE(file().append(numbered_entry(1)));
  EXPECT_TRUE(file().compact());
  EXPECT_EQ(file().load().entries.size(), 1U);
  folder = fs::path(folder).parent_path().parent_path();
}

}  // namespace
}  // namespace packjit::test
