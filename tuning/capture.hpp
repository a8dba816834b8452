#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tuning/trial.hpp"

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

/// One target for each Spec and bucket, with the batch that was called most among those that fall into it; what was
/// called most, first.
[[nodiscard]] std::vector<TuningTarget> targets_of_capture(std::span<const CapturedShape> shapes);

}  // namespace packjit
