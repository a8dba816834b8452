#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "database/builtin_config.hpp"
#include "runtime/compile_cache.hpp"
#include "tests/cache/cache_helpers.hpp"

// `packjit cache` and `packjit compile --cache` as their users call them, and the cache with the real NVRTC.
namespace packjit::test {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status;
  std::string text;  ///< stdout and stderr
};

class CacheCommand : public testing::Test {
 public:
  CacheCommand() {
    std::string name = testing::TempDir() + "packjit-cache-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder = name;
  }
  ~CacheCommand() override {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  CacheCommand(const CacheCommand&) = delete;
  CacheCommand& operator=(const CacheCommand&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (folder / name).string(); }

  /// Runs `variables packjit arguments` with the cache in `cache` (a name in the folder).
  [[nodiscard]] Outcome packjit(const std::string& arguments, const std::string& cache = "cache",
                                const std::string& variables = "") const {
    const std::string line =
        variables + " PACKJIT_CACHE_DIR='" + file(cache) + "' '" + PACKJIT_PROGRAM + "' " + arguments + " 2>&1";
    FILE* pipe = popen(line.c_str(), "r");
    if (pipe == nullptr) return {-1, "popen failed"};
    std::string text;
    std::array<char, 4096> part{};
    while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), n);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
  }
  [[nodiscard]] nlohmann::json list(const std::string& cache = "cache") const {
    const Outcome outcome = packjit("cache list --json", cache);
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    return nlohmann::json::parse(outcome.text, nullptr, false);
  }
  /// How this process gets the convolution for sm_90 from that cache, as CudaDevice::load() asks for it.
  HitKind how_loaded(const std::string& cache) {
    const Spec spec(Operator::conv1d_pack_fwd);
    const Source source = generate(spec, builtin_config(spec, "sm_90"), Target::cuda);
    CompileCache one(nvrtc_compiler(Nvrtc::shared()),
                     open_disk(posix_file_system(), records, system_clock(), file(cache)), records.callback());
    const CachedCompile found = one.get(source, "sm_90");
    EXPECT_TRUE(found.result->ok);
    EXPECT_EQ(found.result->cubin.substr(0, 4),
              "\x7f"
              "ELF");
    EXPECT_NE(found.result->ptx.find(".target sm_90"), std::string::npos);
    return found.how;
  }

  fs::path folder;
  Records records;
};

TEST_F(CacheCommand, CompiledAheadOfTimeIsWhatADeviceLoads) {
  const Outcome outcome = packjit("compile conv1d_pack_fwd --arch sm_90,sm_100 --cache");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("put 2 entries into the disk cache\n"), std::string::npos) << outcome.text;
  const auto found = list();
  ASSERT_EQ(found["entries"].size(), 2U);
  EXPECT_EQ(found["entries"][0]["origin"], "compiled");
  EXPECT_EQ(how_loaded("cache"), HitKind::disk);
  EXPECT_EQ(how_loaded("another cache"), HitKind::compiled);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(CacheCommand, KernelsThatDoNotFitTogetherAreRefused) {
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90 --cache").status, 0);
  const std::int64_t one = list()["bytes"];
  const std::string limit = "PACKJIT_CACHE_BYTES=" + std::to_string(one + one / 2);
  const Outcome outcome = packjit("compile conv1d_pack_fwd --arch sm_80,sm_100 --cache", "cache", limit);
  EXPECT_EQ(outcome.status, 2) << outcome.text;
  EXPECT_NE(outcome.text.find("cannot put the kernels into the disk cache (--cache): its entries have "),
            std::string::npos)
      << outcome.text;
  EXPECT_EQ(list()["entries"].size(), 1U);
  // The newer one stays of two that were written one after the other.
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_80 --cache", "cache", limit).status, 0);
  ASSERT_EQ(list()["entries"].size(), 1U);
  EXPECT_EQ(list()["entries"][0]["arch"], "sm_80");
}

TEST_F(CacheCommand, BundlesCarryEntriesToOtherMachines) {
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90,sm_100 --bundle '" + file("both") + "'").status, 0);
  EXPECT_EQ(list()["entries"].size(), 0U);  // without --cache nothing is put there
  EXPECT_FALSE(fs::exists(file("cache")));

  Outcome outcome = packjit("cache import '" + file("both") + "'", "other");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_EQ(outcome.text, "imported 2 entries into " + file("other") + ", 0 were there\n");
  EXPECT_EQ(list("other")["entries"][1]["origin"], "imported");
  EXPECT_EQ(how_loaded("other"), HitKind::imported);
  outcome = packjit("cache import '" + file("both") + "'", "other");
  EXPECT_EQ(outcome.text, "imported 0 entries into " + file("other") + ", 2 were there\n");

  ASSERT_EQ(packjit("cache export '" + file("one") + "' --arch sm_90", "other").status, 0);
  ASSERT_EQ(packjit("cache import '" + file("one") + "'", "third").status, 0);
  const auto third = list("third");
  ASSERT_EQ(third["entries"].size(), 1U);
  EXPECT_EQ(third["entries"][0]["arch"], "sm_90");
  outcome = packjit("cache export '" + file("none") + "' --arch sm_75", "other");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("has no entries for that --arch to export"), std::string::npos) << outcome.text;
  EXPECT_FALSE(fs::exists(file("none")));
}

TEST_F(CacheCommand, ADamagedBundleImportsNothing) {
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90,sm_100 --bundle '" + file("both") + "'").status, 0);
  fs::resize_file(file("both"), fs::file_size(file("both")) - 1);
  Outcome outcome = packjit("cache import '" + file("both") + "'");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("it ends in entry 2 of 2; nothing was imported"), std::string::npos) << outcome.text;
  EXPECT_EQ(list()["entries"].size(), 0U);
  outcome = packjit("cache import '" + file("no such file") + "'");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("it cannot be read: No such file or directory; give a file"), std::string::npos)
      << outcome.text;
  for (const std::string& path : {std::string("/dev/zero"), folder.string()}) {
    outcome = packjit("cache import '" + path + "'");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.text.find("it is not a regular file; nothing was imported"), std::string::npos) << outcome.text;
  }
}

TEST_F(CacheCommand, VerifyNamesDamagedEntries) {
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90,sm_100 --cache").status, 0);
  Outcome outcome = packjit("cache verify");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.text.find("Every entry is whole.\n"), std::string::npos) << outcome.text;
  const std::string name = list()["entries"][0]["file"];
  std::ofstream(folder / "cache" / name, std::ios::app) << "x";
  for (const char* command : {"cache verify", "cache verify --json"}) {
    outcome = packjit(command);
    EXPECT_EQ(outcome.status, 4);
    EXPECT_NE(outcome.text.find(name + ": it is longer than its header says"), std::string::npos) << outcome.text;
  }
  EXPECT_EQ(list()["entries"][0]["problem"], "it is longer than its header says");
  outcome = packjit("cache clear");
  EXPECT_EQ(outcome.text, "removed 2 entries from " + file("cache") + "\n");
  EXPECT_TRUE(fs::is_empty(file("cache")));
}

TEST_F(CacheCommand, K29_AMovedNvrtcMakesTheSameKey) {
  const fs::path library = Nvrtc::shared()->path();
  fs::create_directory_symlink(library.parent_path(), folder / "moved nvrtc");
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90 --cache").status, 0);
  const std::string variables = "PACKJIT_NVRTC='" + file("moved nvrtc") + "/" + library.filename().string() + "'";
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90 --cache", "cache", variables).status, 0);
  const auto found = list();
  ASSERT_EQ(found["entries"].size(), 1U);
  EXPECT_EQ(found["entries"][0]["nvrtc_build"], Nvrtc::shared()->build());
  EXPECT_GE(Nvrtc::shared()->build().size(), 32U);
}

TEST_F(CacheCommand, K25_WhatNvrtcRefusesIsAnErrorWithItsLogEveryTime) {
  const Source wrong{"edited", "extern \"C\" __global__ void k(float* p) { *p = undeclared(); }\n"};
  for (int i = 0; i < 2; ++i) {
    CompileCache one(nvrtc_compiler(Nvrtc::shared()),
                     open_disk(posix_file_system(), records, system_clock(), file("cache")), records.callback());
    const CachedCompile found = one.get(wrong, "sm_90");
    EXPECT_EQ(found.how, HitKind::compiled);
    EXPECT_FALSE(found.result->ok);
    ASSERT_EQ(found.result->failing_lines.size(), 1U);
    EXPECT_EQ(found.result->failing_lines[0].number, 1);
    EXPECT_NE(found.result->log.find("identifier \"undeclared\" is undefined"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_empty(file("cache")));
}

TEST_F(CacheCommand, K32_RefusesAFolderThatOthersCanWrite) {
  fs::create_directory(file("cache"));
  fs::permissions(file("cache"), fs::perms::all);
  for (const char* command :
       {"cache list", "cache verify", "cache clear", "compile conv1d_pack_fwd --arch sm_90 --cache"}) {
    const Outcome outcome = packjit(command);
    EXPECT_EQ(outcome.status, 3) << command;
    EXPECT_NE(outcome.text.find("other users can write to it (permissions 777)"), std::string::npos) << outcome.text;
  }
  EXPECT_NE(packjit("doctor").text.find("off, kernels are kept in memory only: cannot trust the folder"),
            std::string::npos);
}

/// Runs `work` in a child, where the cache of the process is not open yet; what it wrote to stderr.
std::string stderr_of_child(const std::function<bool()>& work) {
  testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) _exit(work() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return testing::internal::GetCapturedStderr();
}

TEST_F(CacheCommand, TheCacheOfTheProcessIsWhereTheEnvironmentSays) {
  const Source source{"edited", "extern \"C\" __global__ void k(float* p) { *p = 1.0f; }\n"};
  const auto ask_twice = [&](HitKind first) {
    CompileCache& cache = CompileCache::shared();
    return cache.get(source, "sm_90").how == first && cache.get(source, "sm_90").how == HitKind::memory;
  };
  setenv("PACKJIT_CACHE_DIR", file("cache").c_str(), 1);
  EXPECT_EQ(stderr_of_child([&] { return ask_twice(HitKind::compiled); }), "");
  EXPECT_EQ(stderr_of_child([&] { return ask_twice(HitKind::disk); }), "");
  setenv("PACKJIT_CACHE_BYTES", "0", 1);
  EXPECT_EQ(stderr_of_child([&] { return ask_twice(HitKind::compiled); }), "");
  // No number: one warning, and the default holds.
  setenv("PACKJIT_CACHE_BYTES", "1G", 1);
  EXPECT_EQ(stderr_of_child([&] { return ask_twice(HitKind::disk); }),
            "packjit: warning: PACKJIT_CACHE_BYTES is '1G', expected a number of bytes such as 1073741824; the default "
            "holds\n");
  unsetenv("PACKJIT_CACHE_BYTES");
  // K31: one warning, and everything works.
  std::ofstream(file("a file")) << "text";
  setenv("PACKJIT_CACHE_DIR", file("a file").c_str(), 1);
  EXPECT_EQ(stderr_of_child([&] { return ask_twice(HitKind::compiled); }),
            "packjit: warning: compiled kernels are kept in memory only: cannot open the folder '" + file("a file") +
                "': Not a directory. `packjit doctor` shows the cache\n");
  unsetenv("PACKJIT_CACHE_DIR");
}

TEST_F(CacheCommand, ANumberOfBytesThatIsNoneIsBadUsage) {
  for (const char* command :
       {"cache list", "cache verify", "cache clear", "compile conv1d_pack_fwd --arch sm_90 --cache"}) {
    const Outcome outcome = packjit(command, "cache", "PACKJIT_CACHE_BYTES=1G");
    EXPECT_EQ(outcome.status, 2) << command;
    EXPECT_NE(outcome.text.find("PACKJIT_CACHE_BYTES is '1G', expected a number of bytes such as 1073741824"),
              std::string::npos)
        << outcome.text;
  }
  const Outcome doctor = packjit("doctor", "cache", "PACKJIT_CACHE_BYTES=1G PACKJIT_SELF_CHECK=perhaps");
  EXPECT_EQ(doctor.status, 0);
  EXPECT_NE(doctor.text.find("- PACKJIT_CACHE_BYTES is '1G', expected"), std::string::npos) << doctor.text;
  EXPECT_NE(doctor.text.find("- PACKJIT_SELF_CHECK is 'perhaps', expected on or off; on holds"), std::string::npos)
      << doctor.text;
}

TEST_F(CacheCommand, AFolderWhoseNameIsNoUtf8IsReportedAsJson) {
  const std::string cache = "odd\xff";
  fs::create_directory(file(cache));
  fs::permissions(file(cache), fs::perms::owner_all);
  for (const char* command : {"cache list --json", "doctor --json", "db list --json"}) {
    const Outcome outcome = packjit(command, cache, "PACKJIT_DATABASE_DIR='" + file(cache) + "'");
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_FALSE(nlohmann::json::parse(outcome.text, nullptr, false).is_discarded()) << outcome.text;
    EXPECT_NE(outcome.text.find("odd\xEF\xBF\xBD"), std::string::npos) << outcome.text;
  }
}

TEST_F(CacheCommand, VerifyNamesWhatIsNoFile) {
  fs::create_directory(file("cache"));
  fs::permissions(file("cache"), fs::perms::owner_all);
  const auto name = [](char digit, const char* ending) { return std::string(32, digit) + ending; };
  ASSERT_EQ(mkfifo((folder / "cache" / name('a', ".entry")).c_str(), 0600), 0);
  fs::create_symlink("/etc/passwd", folder / "cache" / name('b', ".entry"));
  fs::create_directory(folder / "cache" / name('c', ".entry"));
  std::ofstream(folder / "cache" / name('d', ".checked")) << "text";
  const Outcome outcome = packjit("cache verify");
  EXPECT_EQ(outcome.status, 4);
  for (const std::string& line :
       {name('a', ".entry: it is not a regular file\n"),
        name('b', ".entry: it is a link, and links are not followed\n"), name('c', ".entry: it is a folder\n"),
        name('d', ".checked: its contents do not have the digest in its name")}) {
    EXPECT_NE(outcome.text.find(line), std::string::npos) << outcome.text;
  }
  EXPECT_NE(outcome.text.find("4 of 4 files of the disk cache are damaged"), std::string::npos) << outcome.text;
}

TEST_F(CacheCommand, SelfChecksAreListedAndCleared) {
  const CheckRecord record{"ssm_pack_fwd d_state=16", "84eadcf8a308080f50441c2fadf481e9", "sm_90", "13.0"};
  ASSERT_TRUE(open_disk(posix_file_system(), records, system_clock(), file("cache"))->remember(record));
  const auto found = list();
  ASSERT_EQ(found["self_checks"].size(), 1U);
  EXPECT_EQ(found["self_checks"][0]["source"], "ssm_pack_fwd d_state=16");
  EXPECT_EQ(found["self_checks"][0]["gpu"], "sm_90");
  EXPECT_EQ(found["self_checks"][0]["driver"], "13.0");
  EXPECT_EQ(found["bytes"], found["self_checks"][0]["bytes"]);
  const Outcome text = packjit("cache list");
  EXPECT_NE(text.text.find(": 0 entries, 1 remembered self-checks, "), std::string::npos) << text.text;
  EXPECT_NE(text.text.find("\nsm_90    13.0   "), std::string::npos) << text.text;
  EXPECT_EQ(packjit("cache verify").status, 0);
  EXPECT_EQ(packjit("cache clear").text, "removed 0 entries and 1 remembered self-checks from " + file("cache") + "\n");
  EXPECT_TRUE(fs::is_empty(file("cache")));
}

TEST_F(CacheCommand, K28_SixteenProcessesCompileWithNvrtcOnce) {
  const Spec spec = [] {
    Spec small(Operator::conv1d_pack_fwd);
    small.values.set_text("dtype", "fp32");
    return small;
  }();
  const Source source = generate(spec, builtin_config(spec, "sm_90"), Target::cuda);
  setenv("PACKJIT_CACHE_DIR", file("cold").c_str(), 1);
  int barrier[2], answers[2];
  ASSERT_EQ(pipe(barrier), 0);
  ASSERT_EQ(pipe(answers), 0);
  std::array<pid_t, 16> children{};
  for (pid_t& child : children) {
    child = fork();
    if (child != 0) continue;
    // One byte for each event, which says how the kernel came.
    set_log_callback([&](const LogRecord& record) {
      const char how = record.event ? static_cast<char>(record.event->how) : char{100};
      if (write(answers[1], &how, 1) != 1) _exit(90);
    });
    close(barrier[1]);
    char byte = 0;
    if (read(barrier[0], &byte, 1) != 0) _exit(91);  // until the parent closes its end
    const CachedCompile found = CompileCache::shared().get(source, "sm_90");
    _exit(found.result->ok && found.result->cubin.starts_with("\x7f"
                                                              "ELF")
              ? 0
              : 92);
  }
  close(barrier[0]);
  close(barrier[1]);
  close(answers[1]);
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::array<char, 64> how{};
  const ssize_t count = read(answers[0], how.data(), how.size());
  close(answers[0]);
  ASSERT_EQ(count, 16);
  EXPECT_EQ(std::count(how.begin(), how.begin() + count, static_cast<char>(HitKind::compiled)), 1);
  EXPECT_EQ(std::count(how.begin(), how.begin() + count, static_cast<char>(HitKind::disk)), 15);
  EXPECT_EQ(list("cold")["entries"].size(), 1U);
  EXPECT_EQ(std::distance(fs::directory_iterator(file("cold")), {}), 1);  // neither locks nor temporary files
  unsetenv("PACKJIT_CACHE_DIR");
}

TEST_F(CacheCommand, K31_DoctorSaysWhyThereIsNoCache) {
  const std::string line = std::string("env -u HOME -u XDG_CACHE_HOME -u PACKJIT_CACHE_DIR '") + PACKJIT_PROGRAM +
                           "' doctor | grep -c 'none of PACKJIT_CACHE_DIR, XDG_CACHE_HOME and HOME is set' >'" +
                           file("count") + "'";
  ASSERT_EQ(std::system(line.c_str()), 0);
  EXPECT_EQ(packjit("cache list", "cache", "PACKJIT_CACHE_BYTES=0").status, 3);
}

TEST_F(CacheCommand, K39_FoldersWithBlanksAndOtherScripts) {
  ASSERT_EQ(packjit("compile conv1d_pack_fwd --arch sm_90 --cache", "größe 缓存").status, 0);
  EXPECT_EQ(list("größe 缓存")["entries"].size(), 1U);
  EXPECT_EQ(how_loaded("größe 缓存"), HitKind::disk);
}

}  // namespace
}  // namespace packjit::test
