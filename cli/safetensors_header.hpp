#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace packjit {

/// One tensor of a safetensors header: its bytes are [begin, end) of the data behind the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< as the file spells it
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads the JSON header, in the file's order. Checks its form (keys, types, names given once), not what the numbers
/// mean. Throws std::invalid_argument naming `file_name`, the tensor and the place. Needs no stack that grows with the
/// input.
[[nodiscard]] std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view text, std::string_view file_name);

/// A name out of a file, quoted and cut for a message: no control characters, no invalid UTF-8.
[[nodiscard]] std::string quoted_name(std::string_view name);

}  // namespace packjit
