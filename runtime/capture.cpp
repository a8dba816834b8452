#include "runtime/capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "database/record_json.hpp"
#include "runtime/settings.hpp"
#include "runtime/text_file.hpp"

namespace packjit {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLineBytes = std::size_t{1} << 24;
constexpr std::size_t kMostFileBytes = std::size_t{1} << 30;
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();  // of a row
constexpr std::int64_t kMostChannels = std::int64_t{1} << 23;
constexpr std::int64_t kMostCalls = std::int64_t{1} << 53;  // a double holds it exactly

/// Where in a file something was found.
struct Place {
  std::string_view name;
  std::size_t line;
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw std::invalid_argument(fmt::format("cannot read captured shapes from {}, line {}: expected {}, found {}", name,
                                            line, expected, found));
  }
};

/// Printing a list or an object recurses, as deep as a hostile line nests.
std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  constexpr std::size_t kMostShown = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "...";
}

std::int64_t integer(const json& value, std::int64_t low, std::int64_t high, std::string_view field,
                     const Place& place) {
  std::optional<std::int64_t> number;
  if (value.is_number_unsigned()) {
    const auto large = value.get<std::uint64_t>();
    if (large <= static_cast<std::uint64_t>(high)) number = static_cast<std::int64_t>(large);
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  }
  if (!number || *number < low || *number > high) {
    place.fail(fmt::format("\"{}\" to be a whole number from {} to {}", field, low, high), shown(value));
  }
  return *number;
}

const json& member(const json& object, std::string_view name, const Place& place) {
  const auto found = object.find(name);
  if (found == object.end()) place.fail(fmt::format("a JSON object with \"{}\"", name), "one without it");
  return *found;
}

std::string text_of(const json& value, std::string_view field, const Place& place) {
  if (!value.is_string()) place.fail(fmt::format("\"{}\" to be a string", field), shown(value));
  return value.get<std::string>();
}

constexpr std::string_view kBegin = "{\"op\":";  // of a record, as capture_line() writes it

/// What a killed writer left, in front of what the next one wrote: the first bytes of a record, whose JSON would have
/// to go on behind the last of them.
bool is_rest(std::string_view line) {
  if (!line.starts_with(kBegin) && !kBegin.starts_with(line)) return false;
  try {
    [[maybe_unused]] const json parsed =
        json::parse(line, [](int, json::parse_event_t, const json&) { return false; });  // values are dropped
  } catch (const json::parse_error& error) {
    return error.byte > line.size();
  } catch (const json::exception&) {
  }
  return false;
}

json parse_object(std::string_view line, const Place& place) {
  // The parser itself would keep the last of two equal keys.
  std::set<std::string> keys;  // "op", "spec/dtype"
  std::string outer;
  std::optional<std::string> twice;
  const auto watch = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key && depth <= 2) {
      const auto& key = value.get_ref<const std::string&>();
      if (depth == 1) outer = key;
      if (!keys.insert(depth == 1 ? key : outer + "/" + key).second) twice = key;
    }
    return true;
  };
  json object;
  try {
    object = json::parse(line, watch);
  } catch (const json::exception& error) {
    place.fail("a JSON object", fmt::format("none: {}", reason_of(error)));
  }
  if (!object.is_object()) place.fail("a JSON object", shown(object));
  if (twice) place.fail("every key once", fmt::format("{} twice", shown(json(*twice))));
  return object;
}

Spec spec_from(const json& object, const Place& place) {
  const std::string name = text_of(member(object, "op", place), "op", place);
  try {
    Spec spec(operator_named(name));
    const json& fields = member(object, "spec", place);
    if (!fields.is_object()) place.fail("\"spec\" to be an object", shown(fields));
    for (const auto& [field, value] : fields.items()) {
      const bool labelled = value.is_string();
      if (!labelled && !value.is_number_integer()) {
        place.fail(fmt::format("\"spec\" to have a label or a whole number for \"{}\"", field), shown(value));
      }
      spec.values.set_text(field, labelled ? value.get<std::string>() : value.dump());
    }
    return spec;
  } catch (const std::invalid_argument& error) {
    if (std::string_view(error.what()).starts_with("cannot read")) throw;
    place.fail("an operator and the fields of its Spec", error.what());
  }
}

CapturedShape shape_from(std::string_view line, const Place& place) {
  const json object = parse_object(line, place);
  CapturedShape shape{.spec = spec_from(object, place), .dim = 0, .seqlen = 0, .rows = {}, .calls = 1};
  shape.dim = integer(member(object, "dim", place), 1, kMostChannels, "dim", place);
  const json& rows = member(object, "rows", place);
  if (!rows.is_array() || rows.empty()) place.fail("\"rows\" to be a list of rows", shown(rows));
  std::int64_t longest_row = 0;
  for (const json& row : rows) {
    if (!row.is_array()) place.fail("each of \"rows\" to be a list of lengths", shown(row));
    std::int64_t tokens = 0;
    shape.rows.emplace_back();
    for (const json& length : row) {
      shape.rows.back().push_back(integer(length, 1, kMostTokens, "rows", place));
      tokens += shape.rows.back().back();
      if (tokens > kMostTokens) place.fail(fmt::format("a row of at most {} tokens", kMostTokens), "more");
    }
    longest_row = std::max(longest_row, tokens);
  }
  if (longest_row == 0) place.fail("\"rows\" to have a sequence", "none");
  shape.seqlen = longest_row;
  if (const auto seqlen = object.find("seqlen"); seqlen != object.end()) {
    shape.seqlen = integer(*seqlen, longest_row, kMostTokens, "seqlen", place);
  }
  if (const auto calls = object.find("calls"); calls != object.end()) {
    shape.calls = integer(*calls, 1, kMostCalls, "calls", place);
  }
  return shape;
}

}  // namespace

std::string capture_line(const CapturedShape& shape) {
  const nlohmann::ordered_json line = {{"op", name_of(shape.spec.op)},
                                       {"spec", json_of(shape.spec.values)},
                                       {"dim", shape.dim},
                                       {"seqlen", shape.seqlen},
                                       {"calls", shape.calls},
                                       {"rows", shape.rows}};
  return line.dump();
}

std::vector<CapturedShape> parse_capture(std::string_view text, std::string_view name) {
  std::vector<CapturedShape> shapes;
  for (std::size_t number = 1, begin = 0;; ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const Place place{name, number};
    if (line.size() > kMostLineBytes) {
      place.fail(fmt::format("at most {} bytes", kMostLineBytes), fmt::format("{} bytes", line.size()));
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || is_rest(line)) continue;
    shapes.push_back(shape_from(line, place));
  }
  if (shapes.empty()) {
    throw std::invalid_argument(
        fmt::format("cannot read captured shapes from {}: expected a JSON object a line, found no whole line", name));
  }
  return shapes;
}

std::vector<CapturedShape> read_capture_file(const std::filesystem::path& path) {
  const std::string name = fmt::format("'{}'", path.string());
  const auto fail = [&](std::string_view reason) {
    throw std::invalid_argument(fmt::format("cannot read captured shapes from {}: {}", name, reason));
  };
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  if (kind == std::filesystem::file_type::directory) fail("expected a file, found a folder");
  if (kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found) {
    fail("expected a regular file, found something else");
  }
  return parse_capture(
      read_text_file(path, kMostFileBytes, fmt::format("expected at most {} bytes, found more", kMostFileBytes), fail),
      name);
}

CaptureFile::CaptureFile(FileSystem& files, std::string path, LogCallback log)
    : files_(files), path_(std::move(path)), log_(std::move(log)) {}

std::unique_ptr<CaptureFile> CaptureFile::from_environment() {
  const std::optional<std::string> given = environment("PACKJIT_CAPTURE");
  if (!given) return nullptr;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(*given, error);
  return std::make_unique<CaptureFile>(posix_file_system(), error ? *given : path.string(), &write_log);
}

void CaptureFile::add(const CapturedShape& shape) noexcept {
  if (!is_on()) return;
  try {
    // Its own line also behind one that a killed writer, of this file or another process, has left unfinished.
    const std::string line = "\n" + capture_line(shape) + "\n";
    (void)parse_capture(line, "the shape of a call");  // a line that is refused would make the whole file unreadable
    const std::filesystem::path path(path_);
    std::unique_ptr<Folder> folder;
    const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
    if (const std::error_code error = files_.open_folder(parent, folder)) return stop(error.message());
    if (const std::error_code error = folder->append(path.filename().string(), line)) stop(reason_of(error));
  } catch (const std::exception& error) {
    stop(error.what());
  }
}

void CaptureFile::stop(std::string_view reason) noexcept {
  if (stopped_.exchange(true) || !log_) return;
  try {
    log_({LogLevel::warning,
          fmt::format("cannot record the shapes of calls in '{}', which PACKJIT_CAPTURE names: {}. Calls go on, their "
                      "shapes are not recorded",
                      path_, reason),
          {}});
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace packjit
