#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "runtime/file_system.hpp"

namespace packjit {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;  // nanoseconds

std::error_code last_error() { return {errno, std::generic_category()}; }
std::error_code error_unless(bool done) { return done ? std::error_code() : last_error(); }

/// write(), for which the limit of a file's size is an error and not the signal SIGXFSZ: that would end the
/// application, which may not even know that something is written. The kernel sends it to the thread that writes.
ssize_t write_some(int file, const void* bytes, std::size_t count) {
  sigset_t limit{}, before{}, pending{};
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &limit, &before);
  const ssize_t written = ::write(file, bytes, count);
  const int error = errno;
  if (written < 0 && error == EFBIG && !was_pending) {
    const timespec at_once{};
    while (sigtimedwait(&limit, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

FileInfo info_of(const struct stat& from) {
  FileInfo info;
  if (S_ISREG(from.st_mode)) info.kind = FileKind::regular;
  if (S_ISDIR(from.st_mode)) info.kind = FileKind::folder;
  if (S_ISLNK(from.st_mode)) info.kind = FileKind::link;
  info.owner = from.st_uid;
  info.permissions = from.st_mode & 0777U;
  info.bytes = from.st_size;
  info.last_use = from.st_mtim.tv_sec * kSecond + from.st_mtim.tv_nsec;
  return info;
}

class PosixNewFile final : public NewFile {
 public:
  explicit PosixNewFile(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  std::error_code write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = write_some(descriptor_.number(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return last_error();
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }
  std::error_code sync() override { return error_unless(fsync(descriptor_.number()) == 0); }

 private:
  Descriptor descriptor_;
};

/// The folder's descriptor is one of its own: the lock may outlive the Folder.
class PosixLock final : public FileLock {
 public:
  PosixLock(Descriptor folder, std::string name, Descriptor file)
      : folder_(std::move(folder)), name_(std::move(name)), file_(std::move(file)) {}
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;
  ~PosixLock() override {
    unlinkat(folder_.number(), name_.c_str(), 0);
    flock(file_.number(), LOCK_UN);  // said, since a forked child keeps the file open
  }

 private:
  Descriptor folder_;
  std::string name_;
  Descriptor file_;
};

class PosixFolder final : public Folder {
 public:
  explicit PosixFolder(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  std::error_code info(FileInfo& info) const override {
    struct stat found {};
    if (fstat(number(), &found) != 0) return last_error();
    info = info_of(found);
    return {};
  }

  std::error_code list(std::vector<std::string>& names) const override {
    names.clear();
    const int again = openat(number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0) return last_error();
    DIR* const folder = fdopendir(again);
    if (folder == nullptr) {
      const std::error_code error = last_error();
      close(again);
      return error;
    }
    while (true) {
      errno = 0;
      const dirent* const item = readdir(folder);  // NOLINT(concurrency-mt-unsafe): the stream is this call's own
      if (item == nullptr) break;
      const std::string_view name = item->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const std::error_code error(errno, std::generic_category());
    closedir(folder);
    return error;
  }

  std::error_code stat(const std::string& name, FileInfo& info) const override {
    struct stat found {};
    if (fstatat(number(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return last_error();
    info = info_of(found);
    return {};
  }

  std::error_code read(const std::string& name, std::int64_t most, std::string& bytes, FileInfo& info) const override {
    bytes.clear();
    // A pipe of this name must not be waited for.
    const Descriptor file(openat(number(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.is_open()) return last_error();
    struct stat found {};
    if (fstat(file.number(), &found) != 0) return last_error();
    info = info_of(found);
    if (info.kind == FileKind::folder) return std::make_error_code(std::errc::is_a_directory);
    if (info.kind != FileKind::regular) return std::make_error_code(std::errc::invalid_argument);
    if (info.bytes > most) return std::make_error_code(std::errc::file_too_large);
    bytes.reserve(static_cast<std::size_t>(info.bytes));
    std::array<char, 65536> part{};
    while (true) {
      const ssize_t count = ::read(file.number(), part.data(), part.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return last_error();
      if (count == 0) return {};
      bytes.append(part.data(), static_cast<std::size_t>(count));
      if (static_cast<std::int64_t>(bytes.size()) > most) return std::make_error_code(std::errc::file_too_large);
    }
  }

  std::error_code create(const std::string& name, std::unique_ptr<NewFile>& file) override {
    Descriptor made(openat(number(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.is_open()) return last_error();
    file = std::make_unique<PosixNewFile>(std::move(made));
    return {};
  }

  std::error_code append(const std::string& name, std::string_view bytes) override {
    constexpr int kMostTries = 100;
    for (int i = 0; i < kMostTries; ++i) {
      const Descriptor file(
          openat(number(), name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
      if (!file.is_open()) return last_error();
      struct stat held {
      }, named{};
      if (fstat(file.number(), &held) != 0) return last_error();
      if (!S_ISREG(held.st_mode)) return std::make_error_code(std::errc::invalid_argument);
      ssize_t written = -1;
      do {
        written = write_some(file.number(), bytes.data(), bytes.size());
      } while (written < 0 && errno == EINTR);
      if (written < 0) return last_error();
      // The rest would land behind what others have added since.
      if (static_cast<std::size_t>(written) < bytes.size()) return std::make_error_code(std::errc::no_space_on_device);
      if (fsync(file.number()) != 0) return last_error();
      const bool there = fstatat(number(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0;
      if (there && named.st_ino == held.st_ino && named.st_dev == held.st_dev) return {};
    }
    return std::make_error_code(std::errc::resource_unavailable_try_again);
  }

  std::error_code rename(const std::string& from, const std::string& to) override {
    return error_unless(renameat(number(), from.c_str(), number(), to.c_str()) == 0);
  }

  std::error_code remove(const std::string& name) override {
    return error_unless(unlinkat(number(), name.c_str(), 0) == 0);
  }

  std::error_code set_last_use(const std::string& name, std::int64_t nanoseconds) override {
    const timespec time{static_cast<std::time_t>(nanoseconds / kSecond), nanoseconds % kSecond};
    const timespec times[] = {time, time};
    return error_unless(utimensat(number(), name.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
  }

  std::error_code try_lock(const std::string& name, std::unique_ptr<FileLock>& lock) override {
    constexpr int kMostTries = 100;
    for (int i = 0; i < kMostTries; ++i) {
      Descriptor file(openat(number(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!file.is_open()) return last_error();
      if (flock(file.number(), LOCK_EX | LOCK_NB) != 0) return last_error();
      // The last owner may have removed the file between the two calls; then this lock is one of nothing.
      struct stat held {
      }, named{};
      if (fstat(file.number(), &held) != 0) return last_error();
      if (fstatat(number(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 || held.st_ino != named.st_ino) continue;
      Descriptor folder(fcntl(number(), F_DUPFD_CLOEXEC, 0));
      if (!folder.is_open()) return last_error();
      lock = std::make_unique<PosixLock>(std::move(folder), name, std::move(file));
      return {};
    }
    return std::make_error_code(std::errc::resource_unavailable_try_again);
  }

 private:
  [[nodiscard]] int number() const { return descriptor_.number(); }
  Descriptor descriptor_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::error_code link_info(const std::string& path, FileInfo& info) const override {
    struct stat found {};
    if (lstat(path.c_str(), &found) != 0) return last_error();
    info = info_of(found);
    return {};
  }

  std::error_code make_folders(const std::string& path) override {
    for (std::size_t end = path.find('/', 1); true; end = path.find('/', end + 1)) {
      // One that is there is not asked whether it may be written: only the last has to be.
      const std::string folder = path.substr(0, end);
      struct stat found {};
      if (::stat(folder.c_str(), &found) != 0 && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return last_error();
      }
      if (end == std::string::npos) return {};
    }
  }

  std::error_code open_folder(const std::string& path, std::unique_ptr<Folder>& folder) override {
    Descriptor opened(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened.is_open()) return last_error();
    folder = std::make_unique<PosixFolder>(std::move(opened));
    return {};
  }

  [[nodiscard]] unsigned user() const override { return geteuid(); }
};

}  // namespace

std::string reason_of(std::error_code error, std::int64_t most) {
  if (most > 0 && error == std::errc::file_too_large) return fmt::format("it has more than {} bytes", most);
  struct Reason {
    std::errc error;
    std::string_view words;
  };
  constexpr Reason kReasons[] = {
      {std::errc::too_many_symbolic_link_levels, "it is a link, and links are not followed"},
      {std::errc::is_a_directory, "it is a folder"},
      {std::errc::invalid_argument, "it is not a regular file"},
      {std::errc::no_such_device_or_address, "it is not a regular file"},  // a socket, or a pipe that nobody reads
  };
  for (const Reason& reason : kReasons) {
    if (error == reason.error) return std::string(reason.words);
  }
  return error.message();
}

FileSystem& posix_file_system() {
  static auto* const kSystem = new PosixFileSystem;  // never destroyed: threads may use it while the process ends
  return *kSystem;
}

}  // namespace packjit
