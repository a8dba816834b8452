#pragma once

#include <filesystem>
#include <string>

namespace packjit {

/// Reads kernel source that a user edited. Throws std::invalid_argument with the path and the reason when it cannot be
/// read, holds NUL bytes or is larger than 16 MiB.
[[nodiscard]] std::string read_source_file(const std::filesystem::path& path);

}  // namespace packjit
