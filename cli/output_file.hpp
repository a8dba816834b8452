#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "runtime/temporary_paths.hpp"

namespace packjit {

/// An output file that appears whole or not at all.
///
/// Data go to a private file in the same folder, which the first write makes; `commit` syncs it and renames it over
/// `path`. Until then, and after any failure, a file that was at `path` is as it was, and the private file is removed.
/// A symbolic link is followed, an existing file's permissions are kept. A path that names something that is not a
/// regular file (a pipe, /dev/stdout) is written directly. Errors are those of throw_write_error, with the path and
/// the system's reason. One thread at a time.
class OutputFile {
 public:
  /// Checks that files can be made there, so that an unwritable place is known before the work is done.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text);
  void commit();

 private:
  void open_private();
  [[noreturn]] void fail(const char* attempt, int error);
  void discard() noexcept;

  std::filesystem::path shown_;   ///< as the caller named it, for messages
  std::filesystem::path target_;  ///< behind symbolic links
  std::filesystem::path temporary_;
  TemporaryPath kept_;  ///< temporary_, for signals
  int descriptor_ = -1;
  int permissions_ = -1;  ///< of the file that is replaced
  bool finished_ = false;
};

/// For output that the system refused to write: throws EnvironmentError where the disk or the quota is full,
/// std::invalid_argument otherwise.
[[noreturn]] void throw_write_error(int error, const std::string& message);

/// Throws std::invalid_argument where an output would replace the file that it is made from, or another output, links
/// included; not where one of them is empty. The options are named as they are typed: "--in".
void refuse_same_file(std::string_view input_option, const std::filesystem::path& input, std::string_view output_option,
                      const std::filesystem::path& output);

/// The whole of a file in one call.
void write_output_file(const std::filesystem::path& path, std::string_view text);

}  // namespace packjit
