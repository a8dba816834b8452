#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace packjit {

/// The bytes of a file, `most` of them at most. Where it has more, `fail` is called with `too_large`, and where the
/// system refuses it, with the system's reason; it has to throw.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most,
                                         std::string_view too_large, const std::function<void(std::string_view)>& fail);

}  // namespace packjit
