#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/disk_cache.hpp"
#include "tests/cache/cache_helpers.hpp"

// The machine's own file system, and processes that are forked from the test.
namespace packjit::test {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kNobody = 65534;  // a user id that owns nothing here
bool is_root() { return geteuid() == 0; }

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = testing::TempDir() + "packjit-cache-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path / name).string(); }
  fs::path path;
};

/// A child that runs `work` and ends with what it returns.
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

std::string why_refused(const std::string& path) {
  std::string problem;
  const auto disk = DiskCache::open(posix_file_system(), {path, kDefaultCacheBytes, ""}, system_clock(), {},
                                    DiskCache::Missing::make, problem);
  return disk == nullptr ? problem : "it was opened";
}

class Processes : public testing::Test {
 public:
  CompileCache cache(const std::string& path) {
    return {compiler.compiler(), open_disk(posix_file_system(), records, system_clock(), path), records.callback()};
  }
  TemporaryFolder folder;
  Records records;
  CountingCompiler compiler;
};

TEST_F(Processes, K28_SixteenCompileOnce) {
  const std::string path = folder / "cache", count = folder / "count";
  int barrier[2];
  ASSERT_EQ(pipe(barrier), 0);
  std::vector<pid_t> children;
  children.reserve(16);
  for (int i = 0; i < 16; ++i) {
    children.push_back(start([&] {
      Compiler counting = compiler.compiler();
      counting.compile = [&, inner = counting.compile](const std::string& source, const std::string& arch) {
        const int file = open(count.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (write(file, "x", 1) != 1) _exit(90);
        usleep(100'000);
        return inner(source, arch);
      };
      CompileCache mine(std::move(counting), open_disk(posix_file_system(), records, system_clock(), path), {});
      close(barrier[1]);
      char byte = 0;
      if (read(barrier[0], &byte, 1) != 0) _exit(91);
      const CachedCompile found = mine.get(kSource, "sm_90");
      if (found.result->cubin != "cubin of kernel text for sm_90") _exit(92);
      return static_cast<int>(found.how);
    }));
  }
  close(barrier[1]);  // the children wait for the end of this pipe
  std::array<int, 4> how{};
  for (const pid_t child : children) {
    const int status = status_of(child);
    ASSERT_TRUE(status >= 0 && status < 4) << status;
    ++how[static_cast<std::size_t>(status)];
  }
  close(barrier[0]);
  EXPECT_EQ(fs::file_size(count), 1U);
  EXPECT_EQ(how[static_cast<std::size_t>(HitKind::compiled)], 1);
  EXPECT_EQ(how[static_cast<std::size_t>(HitKind::disk)], 15);
  // Neither locks nor temporary files are left.
  EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), 1);
}

TEST_F(Processes, K28_ALockEndsWithTheProcessThatIsKilled) {
  const std::string path = folder / "cache";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t owner = start([&] {
    const auto disk = open_disk(posix_file_system(), records, system_clock(), path);
    std::optional<CacheEntry> entry;
    const auto lock = disk->lock(cache_key(compiler.compiler(), kSource, "sm_90"), kSource.text, entry);
    if (lock == nullptr || write(ready[1], "x", 1) != 1) return 1;
    pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto disk = open_disk(posix_file_system(), records, system_clock(), path);
  std::unique_ptr<Folder> files;
  ASSERT_FALSE(posix_file_system().open_folder(path, files));
  std::vector<std::string> names;
  ASSERT_FALSE(files->list(names));
  ASSERT_EQ(names.size(), 1U);
  std::unique_ptr<FileLock> lock;
  EXPECT_EQ(files->try_lock(names[0], lock), std::errc::resource_unavailable_try_again);
  kill(owner, SIGKILL);
  status_of(owner);
  EXPECT_FALSE(files->try_lock(names[0], lock));
  EXPECT_EQ(cache(path).get(kSource, "sm_80").how, HitKind::compiled);
}

// K26: the writer is killed at any moment; every entry that is there is whole.
TEST_F(Processes, K26_KilledWhileWriting200Times) {
  const std::string path = folder / "cache";
  std::mt19937 random(7);
  const std::string image(100'000, 'i');
  const auto disk = open_disk(posix_file_system(), records, system_clock(), path);
  const std::array<const char*, 4> archs = {"sm_75", "sm_80", "sm_90", "sm_100"};
  int left_aside = 0, whole = 0;
  for (int i = 0; i < 200; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t writer = start([&] {
      for (unsigned n = 0; true; ++n) {
        CompileResult result;
        result.cubin = image + std::to_string(n);
        result.ptx = image;
        disk->publish(entry_of(cache_key(compiler.compiler(), kSource, archs[n % 4]), kSource.text, result));
        if (n < 2 && write(ready[1], "x", 1) != 1) return 1;
      }
      return 0;
    });
    // Killed within the time that three more entries take, whatever this machine's speed.
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    const auto first = std::chrono::steady_clock::now();
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    std::this_thread::sleep_for((std::chrono::steady_clock::now() - first) * (random() % 300) / 100);
    close(ready[0]);
    close(ready[1]);
    kill(writer, SIGKILL);
    EXPECT_EQ(status_of(writer), -1);
    disk->for_each([&](const DiskCache::Stored& stored) {
      EXPECT_TRUE(stored.entry.has_value()) << stored.file << ": " << stored.problem;
      ++whole;
    });
  }
  for (const auto& file : fs::directory_iterator(path)) left_aside += file.path().extension() == ".tmp" ? 1 : 0;
  // Otherwise the test would have missed what it is about.
  EXPECT_GT(left_aside, 0);
  EXPECT_GT(whole, 0);
  for (const char* arch : archs) EXPECT_TRUE(cache(path).get(kSource, arch).result->ok);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(Processes, K26_AFileTooLargeForMemoryIsAMiss) {
  const std::string path = folder / "cache";
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::compiled);
  const std::string name = short_key(cache_key(compiler.compiler(), kSource, "sm_90")) + std::string(kEntryEnding);
  fs::resize_file(fs::path(path) / name, 1ULL << 40U);  // holes, which take no room on the disk
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::compiled);
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("it has more than 268435456 bytes"), std::string::npos) << records.warnings()[0];
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::disk);
}

TEST_F(Processes, K29_TheKeyIsTheSameForEveryUserFolderAndLocale) {
  const Spec spec(Operator::ssm_pack_fwd);
  const auto key_in_child = [&](const std::function<void()>& change) {
    int result[2];
    EXPECT_EQ(pipe(result), 0);
    const pid_t child = start([&] {
      change();
      const Source source = generate(spec, Config(spec.op));
      const CacheKey key = cache_key(compiler.compiler(), source, "sm_90");
      const std::string text = full_key(key) + short_key(key);
      return write(result[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
    });
    close(result[1]);
    std::array<char, 8192> text{};
    const ssize_t count = read(result[0], text.data(), text.size());
    close(result[0]);
    EXPECT_EQ(status_of(child), 0);
    return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  };
  const std::string plain = key_in_child([] {});
  ASSERT_GT(plain.size(), 100U);
  EXPECT_EQ(plain.find('/'), std::string::npos) << plain;
  EXPECT_EQ(key_in_child([&] { fs::current_path(folder.path); }), plain);
  EXPECT_EQ(key_in_child([] { setenv("HOME", "/nonexistent/other home", 1); }), plain);
  EXPECT_EQ(key_in_child([] {
              setenv("LOCPATH", PACKJIT_LOCALES, 1);
              if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr) std::setlocale(LC_ALL, "C.UTF-8");
            }),
            plain);
  if (is_root()) {
    EXPECT_EQ(key_in_child([] {
                if (setuid(kNobody) != 0) _exit(1);
              }),
              plain);
  }
}

TEST_F(Processes, K29_AMovedCacheIsStillHit) {
  EXPECT_EQ(cache(folder / "one").get(kSource, "sm_90").how, HitKind::compiled);
  fs::rename(folder / "one", folder / "two");
  EXPECT_EQ(cache(folder / "two").get(kSource, "sm_90").how, HitKind::disk);
}

TEST_F(Processes, K31_AFileInItsPlaceIsRefused) {
  std::ofstream(folder / "file") << "text";
  EXPECT_EQ(why_refused(folder / "file"), "cannot open the folder '" + (folder / "file") + "': Not a directory");
  EXPECT_EQ(why_refused(folder / "file/packjit"),
            "cannot look at the folder '" + (folder / "file/packjit") + "': Not a directory");
  EXPECT_EQ(why_refused("/proc/packjit").rfind("cannot make the folder '/proc/packjit': ", 0), 0U);
}

TEST_F(Processes, K31_AReadOnlyFolder) {
  const std::string path = folder / "cache";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  if (is_root()) {
    ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(chmod(folder.path.c_str(), 0755), 0);
  }
  ASSERT_EQ(chmod(path.c_str(), 0500), 0);
  const pid_t child = start([&] {
    if (is_root() && setuid(kNobody) != 0) return 1;
    CompileCache one = cache(path);
    for (const char* arch : {"sm_80", "sm_90"}) {
      if (one.get(kSource, arch).how != HitKind::compiled || one.get(kSource, arch).how != HitKind::memory) return 2;
    }
    return records.warnings().size() == 1 ? 0 : 3;
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_TRUE(fs::is_empty(path));
}

TEST_F(Processes, K31_RemovedWhileRunning) {
  CompileCache one = cache(folder / "cache");
  fs::remove_all(folder / "cache");
  for (const char* arch : {"sm_80", "sm_90"}) {
    EXPECT_EQ(one.get(kSource, arch).how, HitKind::compiled);
    EXPECT_EQ(one.get(kSource, arch).how, HitKind::memory);
  }
  ASSERT_EQ(records.warnings().size(), 1U);
  EXPECT_NE(records.warnings()[0].find("No such file or directory. Kernels are kept in memory only"),
            std::string::npos);
}

TEST_F(Processes, K31_AWriteThatIsCutShort) {
  // A limit on the size of files fails in the middle of a write, as a full disk does.
  const pid_t child = start([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200, 200};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    CompileCache one = cache(folder / "cache");
    if (!one.get(kSource, "sm_90").result->ok) return 2;
    return records.warnings().size() == 1 ? 0 : 3;
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_TRUE(fs::is_empty(folder / "cache"));
}

TEST_F(Processes, K32_AFolderThatOthersCanWriteIsRefused) {
  const std::string path = folder / "cache";
  EXPECT_EQ(why_refused(path), "it was opened");
  struct stat made {};
  ASSERT_EQ(stat(path.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777U, 0700U);
  for (const mode_t mode : {mode_t{0777}, mode_t{01777}, mode_t{0775}}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_NE(why_refused(path).find("other users can write to it"), std::string::npos) << mode;
  }
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_EQ(why_refused(path), "it was opened");
}

TEST_F(Processes, K32_AFolderOrLinkOfAnotherUserIsRefused) {
  if (!is_root()) GTEST_SKIP() << "giving files away needs root";
  const std::string path = folder / "cache", link = folder / "link";
  EXPECT_EQ(why_refused(path), "it was opened");
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  EXPECT_EQ(why_refused(link), "it was opened");
  ASSERT_EQ(lchown(link.c_str(), kNobody, kNobody), 0);
  EXPECT_NE(why_refused(link).find("it belongs to user 65534"), std::string::npos);
  ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
  EXPECT_NE(why_refused(path).find("it belongs to user 65534, not to user 0"), std::string::npos);
}

TEST_F(Processes, K32_ALinkInAnEntrysPlaceIsNotFollowed) {
  const std::string path = folder / "cache";
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::compiled);
  const std::string name = short_key(cache_key(compiler.compiler(), kSource, "sm_90")) + std::string(kEntryEnding);
  fs::rename(fs::path(path) / name, folder.path / "elsewhere");
  fs::create_symlink(folder.path / "elsewhere", fs::path(path) / name);
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::compiled);
  EXPECT_EQ(records.warnings().size(), 1U);
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(fs::path(path) / name)));
}

TEST_F(Processes, K39_NamesWithBlanksAndOtherScripts) {
  const std::string path = folder / "Größe mit Leerzeichen/缓存 'x' \"y\"";
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::compiled);
  EXPECT_EQ(cache(path).get(kSource, "sm_90").how, HitKind::disk);
  EXPECT_TRUE(records.warnings().empty());
}

TEST(CacheLocation, TakesTheFirstThatIsSet) {
  const auto with = [](const char* folder, const char* caches, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("PACKJIT_CACHE_DIR", folder);
    set("XDG_CACHE_HOME", caches);
    set("HOME", home);
    return cache_location().path;
  };
  EXPECT_EQ(with("/a b", "/caches", "/home"), "/a b");
  EXPECT_EQ(with(nullptr, "/caches", "/h"), "/caches/packjit");
  EXPECT_EQ(with(nullptr, "relative", "/h"), "/h/.cache/packjit");
  EXPECT_EQ(with("", "", "/h"), "/h/.cache/packjit");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "");
  // K31: no home at all.
  EXPECT_EQ(cache_location().problem,
            "none of PACKJIT_CACHE_DIR, XDG_CACHE_HOME and HOME is set; set PACKJIT_CACHE_DIR to a folder");
  // A relative folder would be another one in each working directory.
  EXPECT_EQ(with("my cache", "/caches", "/home"), "");
  EXPECT_EQ(cache_location().problem,
            "PACKJIT_CACHE_DIR is 'my cache', a relative path, which is another folder in each working directory; set "
            "PACKJIT_CACHE_DIR to the absolute path of a folder");
  EXPECT_EQ(with(nullptr, nullptr, "home"), "");
  EXPECT_EQ(cache_location().problem.substr(0, 35), "HOME is 'home', a relative path, wh");
}

TEST(CacheLocation, ReadsTheNumberOfBytes) {
  unsetenv("PACKJIT_CACHE_BYTES");
  EXPECT_EQ(cache_location().bytes, 1'073'741'824);
  setenv("PACKJIT_CACHE_BYTES", "5000000000", 1);
  EXPECT_EQ(cache_location().bytes, 5'000'000'000);
  EXPECT_EQ(cache_location().passed_over, "");
  for (const char* wrong : {"1G", "-1", "1.5", " 5", "99999999999999999999"}) {
    setenv("PACKJIT_CACHE_BYTES", wrong, 1);
    EXPECT_EQ(cache_location().passed_over,
              "PACKJIT_CACHE_BYTES is '" + std::string(wrong) + "', expected a number of bytes such as 1073741824");
    EXPECT_EQ(cache_location().bytes, 1'073'741'824);
  }
}

}  // namespace
}  // namespace packjit::test
