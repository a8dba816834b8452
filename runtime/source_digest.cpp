#include "runtime/source_digest.hpp"

#include <algorithm>

#include "generator/generate.hpp"
#include "runtime/digest.hpp"

namespace packjit {
namespace {

/// Where the string or character literal that begins at `begin` ends.
std::size_t literal_end(std::string_view source, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < source.size() && source[end] != source[begin]) end += source[end] == '\\' ? 2 : 1;
  return std::min(end + 1, source.size());
}

}  // namespace

std::string without_comments(std::string_view source) {
  std::string text;
  const auto end_line = [&] {
    while (text.ends_with(' ')) text.pop_back();
    if (!text.empty() && !text.ends_with('\n')) text += '\n';
  };
  for (std::size_t at = 0; at < source.size();) {
    const std::string_view rest = source.substr(at);
    if (rest.starts_with("//")) {
      at = std::min(source.find('\n', at), source.size());
    } else if (rest.starts_with("/*")) {
      const std::size_t end = source.find("*/", at + 2);
      text += ' ';
      at = end == std::string_view::npos ? source.size() : end + 2;
    } else if (rest.front() == '"' || rest.front() == '\'') {
      const std::size_t end = literal_end(source, at);
      text += source.substr(at, end - at);
      at = end;
    } else if (rest.front() == '\n') {
      end_line();
      ++at;
    } else {
      text += rest.front();
      ++at;
    }
  }
  end_line();
  return text;
}

std::string source_digest(const Spec& spec, const Config& config) {
  return digest_hex(without_comments(generate(spec, config).text));
}

}  // namespace packjit
