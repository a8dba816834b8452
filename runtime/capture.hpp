#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"
#include "runtime/file_system.hpp"
#include "runtime/log.hpp"

namespace packjit {

/// The shape of calls that an application made: sizes and lengths, no data (docs/capture_format.md).
struct CapturedShape {
  Spec spec;
  std::int64_t dim = 0;
  std::int64_t seqlen = 0;                      ///< tokens of a row, padding at its end included
  std::vector<std::vector<std::int64_t>> rows;  ///< lengths of the sequences of each row, in tokens
  std::int64_t calls = 1;                       ///< how many there were
  friend bool operator==(const CapturedShape&, const CapturedShape&) = default;
};

/// One line of a capture file, without its end.
[[nodiscard]] std::string capture_line(const CapturedShape& shape);

/// Reads JSON Lines. Throws std::invalid_argument with `name`, the line number, what was expected and what was found,
/// whatever the bytes are. A last line that has no end was not written to the end and is left out.
[[nodiscard]] std::vector<CapturedShape> parse_capture(std::string_view text, std::string_view name);
/// The same for a file; also refuses a folder, and a file that cannot be read or has more than 1 GiB.
[[nodiscard]] std::vector<CapturedShape> read_capture_file(const std::filesystem::path& path);

/// Where the shapes of calls are recorded. Nothing throws: the first failure is one warning, after which nothing more
/// is recorded. Thread-safe.
class CaptureFile {
 public:
  /// `files` must outlive it.
  CaptureFile(FileSystem& files, std::string path, LogCallback log);
  /// The file that PACKJIT_CAPTURE names, a relative one from the working directory of now; null where it is unset.
  [[nodiscard]] static std::unique_ptr<CaptureFile> from_environment();

  /// Adds a line at the end of the file, which is made for the owner alone where it is missing.
  void add(const CapturedShape& shape) noexcept;
  [[nodiscard]] bool is_on() const noexcept { return !stopped_; }
  /// Says why in a warning, unless recording has stopped already.
  void stop(std::string_view reason) noexcept;

 private:
  FileSystem& files_;
  std::string path_;
  LogCallback log_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace packjit
