#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/file_system.hpp"

namespace packjit::test {

constexpr unsigned kUser = 1000;

/// One folder in memory that fails when told to.
class FakeFileSystem final : public FileSystem {
 public:
  struct File {
    std::string bytes;
    FileInfo info;
  };

  // What a test sets and looks at, while no other thread uses the file system.
  std::map<std::string, std::errc> faults;  ///< by operation: "make", "open", "create", "write", "sync", "rename"...
  std::map<std::string, File> files;
  std::map<std::string, int> calls;              ///< how often each operation was asked for
  std::size_t room = 1U << 30U;                  ///< bytes that fit on the disk
  std::int64_t now = 1'000'000'000'000'000'000;  ///< the stamp of new files, in nanoseconds
  int calls_left = 1'000'000'000;  ///< after as many every operation fails, as if the process had been killed
  bool loses_renamed = false;      ///< a renamed file is "not there"
  FileInfo folder{FileKind::folder, kUser, 0700, 0, 0};
  FileInfo path{FileKind::folder, kUser, 0700, 0, 0};
  bool exists = true;
  std::map<std::string, bool> locked;

  std::error_code link_info(const std::string& /*path*/, FileInfo& info) const override {
    if (!exists) return std::make_error_code(std::errc::no_such_file_or_directory);
    info = path;
    return {};
  }
  std::error_code make_folders(const std::string& /*path*/) override {
    const std::error_code error = call("make");
    if (!error) exists = true;
    return error;
  }
  std::error_code open_folder(const std::string& /*path*/, std::unique_ptr<Folder>& opened) override;
  [[nodiscard]] unsigned user() const override { return kUser; }

  /// Notes the call; the fault that is set for it.
  std::error_code call(const std::string& operation) {
    ++calls[operation];
    if (--calls_left < 0) return std::make_error_code(std::errc::io_error);
    const auto fault = faults.find(operation);
    return fault == faults.end() ? std::error_code() : std::make_error_code(fault->second);
  }
  /// Bytes that still fit.
  [[nodiscard]] std::size_t room_left() const {
    std::size_t used = 0;
    for (const auto& [name, file] : files) used += file.bytes.size();
    return room - std::min(room, used);
  }

  std::mutex mutex;
};

class FakeNewFile final : public NewFile {
 public:
  FakeNewFile(FakeFileSystem& system, std::string name) : system_(system), name_(std::move(name)) {}
  std::error_code write(std::string_view bytes) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("write")) return error;
    const std::size_t fits = std::min(bytes.size(), system_.room_left());
    system_.files[name_].bytes += bytes.substr(0, fits);
    return fits < bytes.size() ? std::make_error_code(std::errc::no_space_on_device) : std::error_code();
  }
  std::error_code sync() override {
    const std::lock_guard lock(system_.mutex);
    return system_.call("sync");
  }

 private:
  FakeFileSystem& system_;
  std::string name_;
};

class FakeLock final : public FileLock {
 public:
  FakeLock(FakeFileSystem& system, std::string name) : system_(system), name_(std::move(name)) {}
  FakeLock(const FakeLock&) = delete;
  FakeLock& operator=(const FakeLock&) = delete;
  ~FakeLock() override {
    const std::lock_guard lock(system_.mutex);
    system_.locked.erase(name_);
  }

 private:
  FakeFileSystem& system_;
  std::string name_;
};

class FakeFolder final : public Folder {
 public:
  explicit FakeFolder(FakeFileSystem& system) : system_(system) {}

  std::error_code info(FileInfo& info) const override {
    info = system_.folder;
    return {};
  }
  std::error_code list(std::vector<std::string>& names) const override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("list")) return error;
    for (const auto& [name, file] : system_.files) names.push_back(name);
    return {};
  }
  std::error_code stat(const std::string& name, FileInfo& info) const override {
    std::string bytes;
    return look(name, "stat", bytes, info);
  }
  std::error_code read(const std::string& name, std::int64_t most, std::string& bytes, FileInfo& info) const override {
    const std::error_code error = look(name, "read", bytes, info);
    return !error && info.bytes > most ? std::make_error_code(std::errc::file_too_large) : error;
  }
  std::error_code create(const std::string& name, std::unique_ptr<NewFile>& file) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("create")) return error;
    if (system_.files.contains(name)) return std::make_error_code(std::errc::file_exists);
    system_.files[name].info = {FileKind::regular, kUser, 0600, 0, system_.now};
    file = std::make_unique<FakeNewFile>(system_, name);
    return {};
  }
  std::error_code append(const std::string& name, std::string_view bytes) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("append")) return error;
    const std::size_t fits = std::min(bytes.size(), system_.room_left());
    const auto [file, is_new] = system_.files.try_emplace(name);
    if (is_new) file->second.info = {FileKind::regular, kUser, 0600, 0, system_.now};
    file->second.bytes += bytes.substr(0, fits);
    return fits < bytes.size() ? std::make_error_code(std::errc::no_space_on_device) : std::error_code();
  }
  std::error_code rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("rename")) return error;
    if (!system_.files.contains(from)) return std::make_error_code(std::errc::no_such_file_or_directory);
    if (!system_.loses_renamed) system_.files[to] = system_.files.at(from);
    system_.files.erase(from);
    return {};
  }
  std::error_code remove(const std::string& name) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("remove")) return error;
    system_.files.erase(name);
    return {};
  }
  std::error_code set_last_use(const std::string& name, std::int64_t nanoseconds) override {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call("set_last_use")) return error;
    if (!system_.files.contains(name)) return std::make_error_code(std::errc::no_such_file_or_directory);
    system_.files.at(name).info.last_use = nanoseconds;
    return {};
  }
  std::error_code try_lock(const std::string& name, std::unique_ptr<FileLock>& lock) override {
    const std::lock_guard guard(system_.mutex);
    if (const std::error_code error = system_.call("lock")) return error;
    if (!system_.locked.emplace(name, true).second) {
      return std::make_error_code(std::errc::resource_unavailable_try_again);
    }
    lock = std::make_unique<FakeLock>(system_, name);
    return {};
  }

 private:
  std::error_code look(const std::string& name, const char* operation, std::string& bytes, FileInfo& info) const {
    const std::lock_guard lock(system_.mutex);
    if (const std::error_code error = system_.call(operation)) return error;
    const auto file = system_.files.find(name);
    if (file == system_.files.end()) return std::make_error_code(std::errc::no_such_file_or_directory);
    bytes = file->second.bytes;
    info = file->second.info;
    info.bytes = static_cast<std::int64_t>(bytes.size());
    return {};
  }
  FakeFileSystem& system_;
};

inline std::error_code FakeFileSystem::open_folder(const std::string& /*path*/, std::unique_ptr<Folder>& opened) {
  if (const std::error_code error = call("open")) return error;
  opened = std::make_unique<FakeFolder>(*this);
  return {};
}

}  // namespace packjit::test
