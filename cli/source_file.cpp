#include "cli/source_file.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string_view>

#include "runtime/text_file.hpp"

namespace packjit {

std::string read_source_file(const std::filesystem::path& path) {
  constexpr std::size_t kLargest = 16U << 20;  // bytes; generated source has about 100 KiB
  const auto fail = [&](std::string_view reason) {
    throw std::invalid_argument(fmt::format("cannot read the kernel source '{}': {}", path.string(), reason));
  };
  std::string text = read_text_file(
      path, kLargest, fmt::format("it is larger than {} bytes, so it cannot be a kernel", kLargest), fail);
  if (text.find('\0') != std::string::npos) fail("it holds NUL bytes, so it is not text");
  return text;
}

}  // namespace packjit
