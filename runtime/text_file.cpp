#include "runtime/text_file.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace packjit {

std::string read_text_file(const std::filesystem::path& path, std::size_t most, std::string_view too_large,
                           const std::function<void(std::string_view)>& fail) {
  errno = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  std::string text;
  if (!file) {
    fail(std::generic_category().message(errno));
    return text;
  }
  std::string chunk(std::size_t{1} << 16, '\0');
  for (std::size_t got; (got = std::fread(chunk.data(), 1, chunk.size(), file.get())) > 0;) {
    text.append(chunk, 0, got);
    if (text.size() > most) fail(too_large);
  }
  if (std::ferror(file.get()) != 0) fail(std::generic_category().message(errno));
  return text;
}

}  // namespace packjit
