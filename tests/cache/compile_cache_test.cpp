#include "runtime/compile_cache.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/errors.hpp"
#include "tests/cache/cache_helpers.hpp"
#include "tests/cache/fake_file_system.hpp"
#include "tests/message_of.hpp"

namespace packjit::test {
namespace {

constexpr int kThreads = 16;

/// Lets threads meet; false after ten seconds, so that a test fails rather than hangs.
class Meeting {
 public:
  bool wait_for(int count) {
    std::unique_lock lock(mutex_);
    ++present_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return present_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
};

/// Runs `ask(i)` in 16 threads that begin together.
template <typename F>
void in_threads(F ask) {
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      ask(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CompileCacheTest : public testing::Test {
 public:
  CompileCache cache(Compiler with) {
    return {std::move(with), open_disk(files, records, clock.clock()), records.callback()};
  }
  int events_of(HitKind how) {
    int count = 0;
    for (const KernelEvent& event : records.events()) count += event.how == how ? 1 : 0;
    return count;
  }

  FakeFileSystem files;
  FakeClock clock;
  Records records;
  CountingCompiler compiler;
};

TEST_F(CompileCacheTest, K28_SixteenThreadsCompileOneKeyOnce) {
  Compiler slow = compiler.compiler();
  slow.compile = [inner = slow.compile](const std::string& source, const std::string& arch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return inner(source, arch);
  };
  CompileCache shared = cache(std::move(slow));
  in_threads([&](int) {
    const CachedCompile found = shared.get(kSource, "sm_90");
    EXPECT_EQ(found.result->cubin, "cubin of kernel text for sm_90");
  });
  EXPECT_EQ(compiler.count, 1);
  EXPECT_EQ(events_of(HitKind::compiled), 1);
  EXPECT_EQ(events_of(HitKind::memory), 15);
}

TEST_F(CompileCacheTest, SixteenKeysCompileAtTheSameTime) {
  Meeting meeting;
  Compiler meeting_compiler = compiler.compiler();
  meeting_compiler.compile = [&, inner = meeting_compiler.compile](const std::string& source, const std::string& arch) {
    EXPECT_TRUE(meeting.wait_for(kThreads)) << "compiles wait for each other";
    return inner(source, arch);
  };
  CompileCache shared = cache(std::move(meeting_compiler));
  in_threads([&](int i) {
    const std::string text = "text " + std::to_string(i);
    EXPECT_EQ(shared.get({"edited", text}, "sm_90").result->cubin, "cubin of " + text + " for sm_90");
  });
  EXPECT_EQ(compiler.count, 16);
  EXPECT_EQ(files.files.size(), 16U);
}

TEST_F(CompileCacheTest, AWarmHitIsNotHeldUpByACompile) {
  Meeting compiling, released;
  Compiler blocking = compiler.compiler();
  blocking.compile = [&, inner = blocking.compile](const std::string& source, const std::string& arch) {
    if (arch == "sm_100") {
      EXPECT_TRUE(compiling.wait_for(2));
      EXPECT_TRUE(released.wait_for(2)) << "the warm hit waited";
    }
    return inner(source, arch);
  };
  CompileCache shared = cache(std::move(blocking));
  EXPECT_EQ(shared.get(kSource, "sm_90").how, HitKind::compiled);
  std::thread other([&] { EXPECT_EQ(shared.get(kSource, "sm_100").how, HitKind::compiled); });
  EXPECT_TRUE(compiling.wait_for(2));
  EXPECT_EQ(shared.get(kSource, "sm_90").how, HitKind::memory);
  EXPECT_TRUE(released.wait_for(2));
  other.join();
}

TEST_F(CompileCacheTest, K25_AFailedCompileIsAValueForAllWhoWaitedAndThenForgotten) {
  const Source wrong{"edited", "undeclared();"};
  Compiler slow = compiler.compiler();
  slow.compile = [inner = slow.compile](const std::string& source, const std::string& arch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return inner(source, arch);
  };
  CompileCache shared = cache(std::move(slow));
  in_threads([&](int) {
    const CachedCompile found = shared.get(wrong, "sm_90");
    EXPECT_FALSE(found.result->ok);
    EXPECT_TRUE(found.result->cubin.empty());
    EXPECT_EQ(found.result->log, "kernel.cu(1): error: identifier \"undeclared\" is undefined\n");
    EXPECT_EQ(found.result->options.front(), "--gpu-architecture=sm_90");
  });
  const int before = compiler.count;
  EXPECT_EQ(shared.get(wrong, "sm_90").how, HitKind::compiled);
  EXPECT_EQ(compiler.count, before + 1);
  EXPECT_TRUE(files.files.empty());
}

TEST_F(CompileCacheTest, WhatTheCompilerThrowsIsNotRemembered) {
  bool broken = true;
  Compiler compiler_with_faults = compiler.compiler();
  compiler_with_faults.compile = [&, inner = compiler_with_faults.compile](const std::string& source,
                                                                           const std::string& arch) {
    if (broken) throw EnvironmentError("no builtins");
    return inner(source, arch);
  };
  CompileCache shared = cache(std::move(compiler_with_faults));
  EXPECT_EQ(message_of<EnvironmentError>([&] { (void)shared.get(kSource, "sm_90"); }), "no builtins");
  EXPECT_TRUE(files.locked.empty());
  broken = false;
  EXPECT_EQ(shared.get(kSource, "sm_90").how, HitKind::compiled);
}

TEST_F(CompileCacheTest, K30_EveryPartOfTheKeyMakesAnotherKernel) {
  Compiler other_options = compiler.compiler();
  other_options.options = [](const std::string&) { return std::vector<std::string>{"--std=c++20"}; };
  Compiler other_version = compiler.compiler();
  other_version.version = "13.1";
  const std::vector<std::pair<Compiler, std::pair<Source, std::string>>> all_different = {
      {compiler.compiler(), {kSource, "sm_90"}},
      {compiler.compiler(), {kSource, "sm_100"}},
      {compiler.compiler(), {{kSource.key, "kernel text of an edited template"}, "sm_90"}},
      {compiler.compiler(), {{"ssm_pack_fwd d_state=32 block=128", kSource.text}, "sm_90"}},
      {compiler.compiler("build-2"), {kSource, "sm_90"}},
      {other_version, {kSource, "sm_90"}},
      {other_options, {kSource, "sm_90"}},
  };
  for (const auto& [with, what] : all_different) {
    EXPECT_EQ(cache(with).get(what.first, what.second).how, HitKind::compiled);
  }
  EXPECT_EQ(files.files.size(), 7U);
  for (const auto& [with, what] : all_different) {
    EXPECT_EQ(cache(with).get(what.first, what.second).how, HitKind::disk);
  }
  EXPECT_EQ(compiler.count, 7);
}

TEST_F(CompileCacheTest, AnEditedTextUnderTheSameKeyAndDigestIsStillNotTaken) {
  // What a collision of digests would look like: everything in the key is equal, the text is not.
  const CacheKey key = cache_key(compiler.compiler(), kSource, "sm_90");
  const auto disk = open_disk(files, records, clock.clock());
  CompileResult result;
  result.cubin = "cubin";
  result.ptx = "ptx";
  ASSERT_TRUE(disk->publish(entry_of(key, kSource.text, result)));
  EXPECT_TRUE(disk->read(key, kSource.text).has_value());
  EXPECT_FALSE(disk->read(key, "other text").has_value());
}

TEST_F(CompileCacheTest, WhatWasImportedSaysSo) {
  const CacheKey key = cache_key(compiler.compiler(), kSource, "sm_90");
  CompileResult result;
  result.cubin = "an imported cubin";
  result.ptx = "ptx";
  CacheEntry entry = entry_of(key, kSource.text, result);
  entry.origin = CacheEntry::Origin::imported;
  ASSERT_TRUE(open_disk(files, records, clock.clock())->publish(entry));
  CompileCache shared = cache(compiler.compiler());
  const CachedCompile found = shared.get(kSource, "sm_90");
  EXPECT_EQ(found.how, HitKind::imported);
  EXPECT_EQ(found.result->cubin, "an imported cubin");
  EXPECT_EQ(shared.get(kSource, "sm_90").how, HitKind::memory);
  EXPECT_EQ(compiler.count, 0);
}

TEST_F(CompileCacheTest, EveryCallIsAnEvent) {
  CompileCache shared = cache(compiler.compiler());
  (void)shared.get(kSource, "sm_90");
  (void)shared.get(kSource, "sm_90");
  const std::vector<KernelEvent> events = records.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].how, HitKind::compiled);
  EXPECT_EQ(events[1].how, HitKind::memory);
  EXPECT_EQ(events[0].key, events[1].key);
  EXPECT_NE(events[0].key.find("source ssm_pack_fwd d_state=16 block=128\n"), std::string::npos);
  EXPECT_GE(events[0].seconds, 0);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(CompileCacheTest, WorksWithoutADisk) {
  CompileCache memory(compiler.compiler(), nullptr, {});
  EXPECT_EQ(memory.get(kSource, "sm_90").how, HitKind::compiled);
  EXPECT_EQ(memory.get(kSource, "sm_90").how, HitKind::memory);
}

TEST(Log, WarningsGoToTheCallbackThatIsSet) {
  std::vector<std::string> seen;
  set_log_callback([&](const LogRecord& record) { seen.push_back(record.message); });
  write_log({LogLevel::warning, "one", {}});
  set_log_callback({});
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  write_log({LogLevel::warning, "two", {}});
  write_log({LogLevel::event, "three", {}});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "packjit: warning: two\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(seen, std::vector<std::string>{"one"});
}

TEST(CompileCacheMemory, KeepsTheResultsAskedForLast) {
  CountingCompiler compiler;
  CompileCache memory(compiler.compiler(), nullptr, {});
  const auto ask = [&](int number) {
    return memory.get({"kernel " + std::to_string(number), "text " + std::to_string(number)}, "sm_90").how;
  };
  for (int i = 0; i < 64; ++i) EXPECT_EQ(ask(i), HitKind::compiled);
  EXPECT_EQ(ask(0), HitKind::memory);
  EXPECT_EQ(ask(64), HitKind::compiled);  // the 65th: the one asked for longest ago, number 1, goes
  EXPECT_EQ(ask(0), HitKind::memory);
  EXPECT_EQ(ask(2), HitKind::memory);
  EXPECT_EQ(ask(1), HitKind::compiled);
}

}  // namespace
}  // namespace packjit::test
