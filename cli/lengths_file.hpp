#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

/// The most bytes of a line and of a file that are taken.
inline constexpr std::size_t kMaximumLengthsLine = std::size_t{1} << 24;
inline constexpr std::size_t kMaximumLengthsFile = std::size_t{1} << 30;

/// Reads document lengths from text: one whole number a line, or, where the first character that is not blank is `{`,
/// JSON Lines with `length` and optional `breaks` (other fields are ignored; a key that comes twice is refused). Lines
/// end in LF or CR LF; empty lines are taken at the end only. Lengths are 1 to kMaximumLength, breaks increase inside
/// (0, length). Throws std::invalid_argument with `name`, the line number, what was expected and what was found.
/// Nothing else is thrown whatever the bytes are, except std::bad_alloc.
[[nodiscard]] std::vector<Document> parse_lengths(std::string_view text, std::string_view name);

/// The same for a file; also refuses a folder, a file that cannot be read and one of more than kMaximumLengthsFile.
[[nodiscard]] std::vector<Document> read_lengths_file(const std::filesystem::path& path);

}  // namespace packjit
