#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/compile_cache.hpp"

namespace packjit::test {

/// What the cache told its log.
class Records {
 public:
  LogCallback callback() {
    return [this](const LogRecord& record) {
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    };
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const LogRecord& record : records_) {
      if (record.level == LogLevel::warning) found.push_back(record.message);
    }
    return found;
  }
  std::vector<KernelEvent> events() {
    const std::lock_guard lock(mutex_);
    std::vector<KernelEvent> found;
    for (const LogRecord& record : records_) {
      if (record.event) found.push_back(*record.event);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<LogRecord> records_;
};

constexpr std::int64_t kSecond = 1'000'000'000;  // nanoseconds

/// Time that passes only when slept through or set.
struct FakeClock {
  std::atomic<std::int64_t> seconds = 1'000'000'000;
  std::atomic<std::int64_t> slept_ms = 0;
  Clock clock() {
    return {[this] { return seconds.load() * kSecond; },
            [this](std::chrono::milliseconds time) { slept_ms += time.count(); }};
  }
};

/// "Compiles" any source but one that holds "undeclared()".
class CountingCompiler {
 public:
  Compiler compiler(const std::string& build = "build-1") {
    Compiler compiler;
    compiler.version = "13.0";
    compiler.build = build;
    compiler.options = [](const std::string& arch) {
      return std::vector<std::string>{"--gpu-architecture=" + arch, "--std=c++17"};
    };
    compiler.compile = [this](const std::string& source, const std::string& arch) {
      ++count;
      CompileResult result;
      result.arch = arch;
      result.nvrtc_version = "13.0";
      result.options = {"--gpu-architecture=" + arch, "--std=c++17"};
      result.seconds = 0.25;
      if (source.find("undeclared()") != std::string::npos) {
        result.log = "kernel.cu(1): error: identifier \"undeclared\" is undefined\n";
        result.failing_lines = {{1, source, "error: identifier \"undeclared\" is undefined"}};
        return result;
      }
      result.ok = true;
      result.log = "a log";
      result.cubin = "cubin of " + source + " for " + arch;
      result.ptx = "PTX of " + source + " for " + arch;
      return result;
    };
    return compiler;
  }
  std::atomic<int> count = 0;
};

inline const Source kSource{"ssm_pack_fwd d_state=16 block=128", "kernel text"};

/// The disk cache on a file system, which has to be usable.
inline std::unique_ptr<DiskCache> open_disk(FileSystem& files, Records& records, Clock clock,
                                            const std::string& path = "/cache",
                                            std::int64_t bytes = kDefaultCacheBytes) {
  std::string problem;
  auto disk = DiskCache::open(files, {path, bytes, ""}, std::move(clock), records.callback(), DiskCache::Missing::make,
                              problem);
  EXPECT_NE(disk, nullptr) << problem;
  return disk;
}

}  // namespace packjit::test
