#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace packjit {

enum class FileKind { regular, folder, link, other };

struct FileInfo {
  FileKind kind = FileKind::other;
  unsigned owner = 0;         ///< user id
  unsigned permissions = 0;   ///< the nine bits of owner, group and others
  std::int64_t bytes = 0;     ///< of contents
  std::int64_t last_use = 0;  ///< nanoseconds since 1970: the time of modification, which set_last_use() sets
};

/// A file that is being written. Closed, not removed, on destruction.
class NewFile {
 public:
  NewFile() = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  virtual ~NewFile() = default;
  [[nodiscard]] virtual std::error_code write(std::string_view bytes) = 0;
  /// Waits until the contents are on the disk.
  [[nodiscard]] virtual std::error_code sync() = 0;
};

/// Held until destruction, or until the process ends in any way.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  virtual ~FileLock() = default;
};

/// A folder that stays open: whoever renames or replaces its path later changes nothing here. Names are those of files
/// directly inside; links are not followed. Nothing throws, failures are the system's error codes. Safe to use from
/// several threads.
class Folder {
 public:
  Folder() = default;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  virtual ~Folder() = default;

  [[nodiscard]] virtual std::error_code info(FileInfo& info) const = 0;
  [[nodiscard]] virtual std::error_code list(std::vector<std::string>& names) const = 0;
  [[nodiscard]] virtual std::error_code stat(const std::string& name, FileInfo& info) const = 0;
  /// The contents, and what the very file that was read is; std::errc::file_too_large where it has more than `most`
  /// bytes, is_a_directory or invalid_argument where it is no regular file.
  [[nodiscard]] virtual std::error_code read(const std::string& name, std::int64_t most, std::string& bytes,
                                             FileInfo& info) const = 0;
  /// Makes a new file for the owner alone; std::errc::file_exists where there is one.
  [[nodiscard]] virtual std::error_code create(const std::string& name, std::unique_ptr<NewFile>& file) = 0;
  /// Adds the bytes at the end of a file, in one piece whoever else does so, and waits until they are on the disk.
  /// Makes the file for the owner alone where it is missing. When it returns, the file of this name has them: where it
  /// was renamed meanwhile they are added again to the new one. After a failure a part of them may be there.
  /// std::errc::invalid_argument where it is no regular file.
  [[nodiscard]] virtual std::error_code append(const std::string& name, std::string_view bytes) = 0;
  [[nodiscard]] virtual std::error_code rename(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual std::error_code remove(const std::string& name) = 0;
  [[nodiscard]] virtual std::error_code set_last_use(const std::string& name, std::int64_t nanoseconds) = 0;
  /// Takes the lock of this name among processes and threads; std::errc::resource_unavailable_try_again where another
  /// has it, anything else where locks do not work. Does not wait. The file of the lock is removed with it.
  [[nodiscard]] virtual std::error_code try_lock(const std::string& name, std::unique_ptr<FileLock>& lock) = 0;
};

/// Why a Folder could not read or write a file, in words that fit what lies there. `most` is what read() was given.
[[nodiscard]] std::string reason_of(std::error_code error, std::int64_t most = 0);

/// What the disk cache and the tuning database need of a file system. Tests pass one that fails when told to.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Of the path itself, a link not followed.
  [[nodiscard]] virtual std::error_code link_info(const std::string& path, FileInfo& info) const = 0;
  /// Makes the folder and those above it where they are missing, for the owner alone.
  [[nodiscard]] virtual std::error_code make_folders(const std::string& path) = 0;
  [[nodiscard]] virtual std::error_code open_folder(const std::string& path, std::unique_ptr<Folder>& folder) = 0;
  /// The user whose permissions hold for this process.
  [[nodiscard]] virtual unsigned user() const = 0;
};

/// The machine's own.
[[nodiscard]] FileSystem& posix_file_system();

}  // namespace packjit
