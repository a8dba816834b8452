#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/file_system.hpp"

namespace packjit::test {
namespace {

class PosixFolder : public testing::Test {
 public:
  PosixFolder() {
    std::string name = testing::TempDir() + "packjit-folder-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path = name;
    EXPECT_FALSE(posix_file_system().open_folder(path.string(), folder));
  }
  ~PosixFolder() override {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  PosixFolder(const PosixFolder&) = delete;
  PosixFolder& operator=(const PosixFolder&) = delete;

  std::filesystem::path path;
  std::unique_ptr<Folder> folder;
};

/// In a child, whose files may have 8 bytes: 0 where the limit was an error, twice, and left no signal behind.
int write_beyond_the_limit(Folder& folder) {
  const rlimit limit{8, 8};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
  if (folder.append("log", "12345678")) return 2;
  if (folder.append("log", "9") != std::errc::file_too_large) return 3;
  std::unique_ptr<NewFile> file;
  if (folder.create("new", file)) return 4;
  if (file->write("123456789") != std::errc::file_too_large) return 5;
  sigset_t pending{};
  sigpending(&pending);
  if (sigismember(&pending, SIGXFSZ) != 0) return 6;
  sigset_t blocked{};
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, SIGXFSZ) == 0 ? 0 : 7;
}

TEST_F(PosixFolder, TheLimitOfAFilesSizeDoesNotEndTheApplication) {
  const pid_t child = fork();
  if (child == 0) _exit(write_beyond_the_limit(*folder));
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(PosixFolder, WritesReadsRenamesAndRemoves) {
  std::unique_ptr<NewFile> file;
  ASSERT_FALSE(folder->create("one", file));
  EXPECT_FALSE(file->write("ab"));
  EXPECT_FALSE(file->write("cd"));
  EXPECT_FALSE(file->sync());
  std::unique_ptr<NewFile> second;
  EXPECT_EQ(folder->create("one", second), std::errc::file_exists);
  EXPECT_FALSE(folder->set_last_use("one", 1'234'567'000'000'089));
  EXPECT_FALSE(folder->rename("one", "two"));
  std::string bytes;
  FileInfo info;
  EXPECT_EQ(folder->read("one", 4, bytes, info), std::errc::no_such_file_or_directory);
  ASSERT_FALSE(folder->read("two", 4, bytes, info));
  EXPECT_EQ(bytes, "abcd");
  EXPECT_EQ(folder->read("two", 3, bytes, info), std::errc::file_too_large);
  EXPECT_EQ(info.bytes, 4);
  EXPECT_EQ(info.last_use, 1'234'567'000'000'089);
  EXPECT_EQ(info.kind, FileKind::regular);
  EXPECT_EQ(info.permissions, 0600U);
  EXPECT_EQ(info.owner, posix_file_system().user());
  std::vector<std::string> names;
  EXPECT_FALSE(folder->list(names));
  EXPECT_EQ(names, std::vector<std::string>{"two"});
  EXPECT_FALSE(folder->remove("two"));
  EXPECT_EQ(folder->stat("two", info), std::errc::no_such_file_or_directory);
}

TEST_F(PosixFolder, APipeInAFilesPlaceIsNotWaitedFor) {
  ASSERT_EQ(mkfifo((path / "pipe").c_str(), 0600), 0);
  std::string bytes;
  FileInfo info;
  EXPECT_EQ(folder->read("pipe", 4, bytes, info), std::errc::invalid_argument);
}

TEST_F(PosixFolder, WhatLiesInAFilesPlaceIsNamed) {
  ASSERT_EQ(mkfifo((path / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(mkdir((path / "folder").c_str(), 0700), 0);
  ASSERT_EQ(symlink("/dev/null", (path / "link").c_str()), 0);
  struct Case {
    const char *name, *words;
  };
  constexpr Case kCases[] = {{"pipe", "it is not a regular file"},
                             {"folder", "it is a folder"},
                             {"link", "it is a link, and links are not followed"}};
  std::string bytes;
  FileInfo info;
  for (const Case& lies : kCases) {
    EXPECT_EQ(reason_of(folder->read(lies.name, 4, bytes, info), 4), lies.words);
    EXPECT_EQ(reason_of(folder->append(lies.name, "x")), lies.words);
  }
  ASSERT_FALSE(folder->append("file", "12345"));
  EXPECT_EQ(reason_of(folder->read("file", 4, bytes, info), 4), "it has more than 4 bytes");
}

// A link there would lead to it, which is why its folder is opened.
TEST(PosixFileSystem, ADeviceIsNoFile) {
  std::unique_ptr<Folder> devices;
  ASSERT_FALSE(posix_file_system().open_folder("/dev", devices));
  std::string bytes;
  FileInfo info;
  EXPECT_EQ(reason_of(devices->read("null", 4, bytes, info), 4), "it is not a regular file");
  EXPECT_EQ(reason_of(devices->append("null", "x")), "it is not a regular file");
}

// The file of a lock is removed with it, so another may take the lock of a file that is gone already.
TEST_F(PosixFolder, ALockNeverHasTwoOwners) {
  constexpr int kThreads = 16, kTimes = 2000;
  std::atomic<int> owners = 0, taken = 0, wrong = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kTimes;) {
        std::unique_ptr<FileLock> lock;
        const std::error_code error = folder->try_lock("lock", lock);
        if (error == std::errc::resource_unavailable_try_again) continue;
        if (error || ++owners != 1) ++wrong;
        ++taken;
        ++n;
        --owners;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(taken, kThreads * kTimes);
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

}  // namespace
}  // namespace packjit::test
