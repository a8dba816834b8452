#include "cli/source_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace packjit {

std::string read_source_file(const std::filesystem::path& path) {
  constexpr std::size_t kLargest = 16U << 20;  // bytes; generated source has about 100 KiB
  const auto fail = [&](const std::string& reason) {
    throw std::invalid_argument(fmt::format("cannot read the kernel source '{}': {}", path.string(), reason));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail(std::strerror(errno));
  std::string text;
  char part[65536];
  while (const std::size_t count = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, count);
    if (text.size() > kLargest) fail(fmt::format("it is larger than {} bytes, so it cannot be a kernel", kLargest));
  }
  if (std::ferror(file.get()) != 0) fail(std::strerror(errno));
  if (text.find('\0') != std::string::npos) fail("it holds NUL bytes, so it is not text");
  return text;
}

}  // namespace packjit
