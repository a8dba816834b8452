#include "cli/lengths_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

#include "runtime/text_file.hpp"

namespace packjit {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytes = 40;
constexpr std::string_view kBlanks = " \t\r";
/// No number that is in range is longer, leading zeros aside.
constexpr std::size_t kMaximumNumberLine = 64;

/// Text from outside, fit for a terminal: quoted, shortened, nothing unprintable.
std::string shown(std::string_view text) {
  std::string result = "'";
  for (const char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kShownBytes ? fmt::format("...' ({} bytes)", text.size()) : "'");
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Where a message points to.
struct Place {
  std::string_view name;
  std::size_t line;

  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw std::invalid_argument(
        fmt::format("cannot read lengths from {}, line {}: expected {}, found {}", name, line, expected, found));
  }
};

std::string expected_length() { return fmt::format("a length in tokens, a whole number from 1 to {}", kMaximumLength); }

Document document_of_number(std::string_view line, const Place& place) {
  if (line.size() > kMaximumNumberLine) place.fail(expected_length(), shown(line));
  Document document;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), document.length);
  if (error != std::errc() || end != line.data() + line.size() || document.length < 1 ||
      document.length > kMaximumLength) {
    place.fail(expected_length(), line.empty() ? "an empty line" : shown(line));
  }
  return document;
}

/// Lists and objects by kind alone: printing them recurses, as deep as a hostile line nests.
std::string shown_value(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return shown(std::string_view(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

/// The value as an integer, or nothing where it is not a whole number or too large in either direction.
std::optional<std::int64_t> integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(kMaximumLength)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

/// Takes note of the first key that the outermost object has twice: the parser itself would keep the last value.
class DuplicateKeys {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.insert(key).second && !found_) found_ = key;
    }
    return true;
  }
  [[nodiscard]] const std::optional<std::string>& found() const { return found_; }

 private:
  std::set<std::string> keys_;
  std::optional<std::string> found_;
};

Document document_of_json(std::string_view line, const Place& place) {
  json object;
  DuplicateKeys duplicates;
  try {
    object = json::parse(line, std::ref(duplicates));
  } catch (const json::parse_error& error) {
    place.fail("a JSON object with \"length\"", fmt::format("{}, no JSON from byte {} on", shown(line), error.byte));
  } catch (const json::out_of_range&) {
    place.fail("a JSON object with \"length\"", fmt::format("{} with a number that is too large", shown(line)));
  }
  if (!object.is_object()) place.fail("a JSON object with \"length\"", shown(line));
  if (duplicates.found()) place.fail("every key once", fmt::format("{} twice", shown(*duplicates.found())));
  const auto length = object.find("length");
  if (length == object.end()) place.fail("a JSON object with \"length\"", fmt::format("{} without it", shown(line)));
  Document document;
  document.length = integer(*length).value_or(0);
  if (document.length < 1 || document.length > kMaximumLength) {
    place.fail(fmt::format("\"length\" to be {}", expected_length()), shown_value(*length));
  }
  const auto breaks = object.find("breaks");
  if (breaks == object.end()) return document;
  if (!breaks->is_array()) place.fail("\"breaks\" to be a list of token offsets", shown_value(*breaks));
  document.breaks.reserve(breaks->size());
  std::int64_t last = 0;
  for (const json& value : *breaks) {
    const std::int64_t point = integer(value).value_or(0);
    if (point <= last || point >= document.length) {
      place.fail(fmt::format("\"breaks\" to be whole numbers that increase inside (0, {})", document.length),
                 fmt::format("{} after {}", shown_value(value), last));
    }
    document.breaks.push_back(point);
    last = point;
  }
  return document;
}

}  // namespace

std::vector<Document> parse_lengths(std::string_view text, std::string_view name) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty() && (text.back() == '\n' || kBlanks.find(text.back()) != std::string_view::npos)) {
    text.remove_suffix(1);
  }
  if (text.empty()) {
    throw std::invalid_argument(
        fmt::format("cannot read lengths from {}: expected one length a line, or JSON Lines with \"length\", found "
                    "nothing",
                    name));
  }
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool is_json = text[first] == '{';
  std::vector<Document> documents;
  for (std::size_t number = 1, begin = 0; begin <= text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view whole = text.substr(begin, end - begin);
    const Place place{name, number};
    begin = end + 1;
    if (whole.size() > kMaximumLengthsLine) {
      place.fail(fmt::format("at most {} bytes", kMaximumLengthsLine), fmt::format("{} bytes", whole.size()));
    }
    const std::string_view line = trimmed(whole);
    if (line.find('\0') != std::string_view::npos) place.fail("text", fmt::format("a NUL byte in {}", shown(line)));
    documents.push_back(is_json ? document_of_json(line, place) : document_of_number(line, place));
  }
  return documents;
}

std::vector<Document> read_lengths_file(const std::filesystem::path& path) {
  const std::string name = fmt::format("'{}'", path.string());
  const auto fail = [&](std::string_view reason) {
    throw std::invalid_argument(fmt::format("cannot read lengths from {}: {}", name, reason));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail("expected a file, found a folder");
  const std::string too_large =
      fmt::format("expected at most {} bytes, found more; split the file", kMaximumLengthsFile);
  return parse_lengths(read_text_file(path, kMaximumLengthsFile, too_large, fail), name);
}

}  // namespace packjit
