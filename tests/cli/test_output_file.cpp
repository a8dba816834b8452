#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cli/output_file.hpp"
#include "runtime/errors.hpp"
#include "runtime/temporary_paths.hpp"

namespace packjit {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "packjit output é XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  /// What the message of a failing call must hold besides the path.
  template <typename Error = std::invalid_argument, typename Call>
  void expect_refusal(Call call, const std::string& path, const std::string& reason) {
    try {
      call();
      FAIL() << "no error for " << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'" + path + "'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
};

TEST_F(OutputFileTest, ReplacesAnExistingFileAndKeepsItsPermissions) {
  const fs::path path = folder_ / "out";
  write_output_file(path, "first");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  write_output_file(path, std::string_view("a\0b", 3));
  EXPECT_EQ(read_all(path), std::string("a\0b", 3));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, WithoutCommitTheOldFileStays) {
  const fs::path path = folder_ / "out";
  write_output_file(path, "old");
  {
    OutputFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_all(path), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, NothingAppearsBeforeTheFirstWrite) {
  OutputFile file(folder_ / "out");
  EXPECT_EQ(files(), 0U);
  file.commit();
  EXPECT_EQ(read_all(folder_ / "out"), "");
}

TEST_F(OutputFileTest, ASignalRemovesThePrivateFile) {
  const fs::path path = folder_ / "out";
  const pid_t child = fork();
  if (child == 0) {
    remove_temporaries_on_signals();
    OutputFile file(path);
    file.write("half");
    raise(SIGTERM);
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(files(), 0U);
}

TEST_F(OutputFileTest, AFailedWriteLeavesTheOldFile) {
  const fs::path path = folder_ / "out";
  write_output_file(path, "old");
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  rlimit tight = usual;
  tight.rlim_cur = 4096;
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  expect_refusal([&] { write_output_file(path, std::string(10000, 'x')); }, path.string(), "File too large");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  EXPECT_EQ(read_all(path), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, RefusesWhatCannotBeWritten) {
  const fs::path missing = folder_ / "no" / "out";
  expect_refusal([&] { OutputFile file(missing); }, missing.string(), "No such file or directory");
  expect_refusal([&] { OutputFile file(folder_); }, folder_.string(), "Is a directory");
  expect_refusal([&] { OutputFile file(""); }, "", "No such file or directory");
  const fs::path below_file = folder_ / "file" / "out";
  write_output_file(folder_ / "file", "");
  expect_refusal([&] { OutputFile file(below_file); }, below_file.string(), "Not a directory");
}

TEST_F(OutputFileTest, FollowsSymbolicLinks) {
  fs::create_directory(folder_ / "real");
  fs::create_symlink("real/out", folder_ / "link");
  write_output_file(folder_ / "link", "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_all(folder_ / "real" / "out"), "text");
}

TEST_F(OutputFileTest, ADeviceIsWrittenAndNotReplaced) {
  write_output_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  expect_refusal<EnvironmentError>([] { write_output_file("/dev/full", "text"); }, "/dev/full",
                                   "No space left on device");
}

}  // namespace
}  // namespace packjit
