#include "checking/case_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "database/record_json.hpp"
#include "generator/shared_fields.hpp"

namespace packjit::checking {

namespace {

using nlohmann::json;

/// Enough for any case that the fp64 oracle can follow, and small enough that no product of sizes overflows.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;  ///< tokens or states times channels

[[noreturn]] void refuse(std::string_view field, const std::string& found, std::string_view expected) {
  throw std::invalid_argument(fmt::format("reading a case: field \"{}\" is {}; expected {}", field, found, expected));
}

std::int64_t integer(std::string_view field, const json& value, std::int64_t low, std::int64_t high) {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  if (!value.is_number_integer()) refuse(field, value.dump(), expected);
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse(field, value.dump(), expected);
  }
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) refuse(field, value.dump(), expected);
  return number;
}

bool boolean(std::string_view field, const json& value) {
  if (!value.is_boolean()) refuse(field, value.dump(), "true or false");
  return value.get<bool>();
}

std::string text_of(std::string_view field, const json& value) {
  if (!value.is_string()) refuse(field, value.dump(), "a string");
  return value.get<std::string>();
}

Dtype dtype_named(const std::string& name) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  refuse("dtype", json(name).dump(), "fp32, fp16 or bf16");
}

std::string_view layout_name(Layout layout) {
  return layout == Layout::token_major ? "token-major" : layout == Layout::channel_major ? "channel-major" : "strided";
}

Layout layout_named(const std::string& name) {
  for (const Layout layout : {Layout::token_major, Layout::channel_major, Layout::strided}) {
    if (name == layout_name(layout)) return layout;
  }
  refuse("layout", json(name).dump(), "token-major, channel-major or strided");
}

MapStorage map_named(const std::string& name) {
  const auto* const found = std::ranges::find(kMapLabels, name);
  if (found == std::end(kMapLabels)) {
    refuse("map", json(name).dump(), fmt::format("{}", fmt::join(kMapLabels, ", ")));
  }
  return static_cast<MapStorage>(found - std::begin(kMapLabels));
}

std::vector<Row> rows_from(const json& value) {
  if (!value.is_array() || value.empty()) refuse("rows", value.dump(), "a list of rows");
  std::vector<Row> rows;
  std::int64_t total = 0;
  for (const json& row : value) {
    if (!row.is_array() || row.empty()) refuse("rows", row.dump(), "rows that are lists of lengths");
    std::vector<std::int64_t> lengths;
    for (const json& length : row) {
      lengths.push_back(integer("rows", length, -kMostTokens, kMostTokens));
      if (lengths.back() == 0) refuse("rows", "0", "a length, or a negative length for padding");
      total += std::abs(lengths.back());
      if (total > kMostTokens) refuse("rows", "more", fmt::format("at most {} tokens in all", kMostTokens));
    }
    rows.push_back(row_of(lengths));
  }
  return rows;
}

void read_option(Case& c, const std::string& name, const json& value) {
  const auto option = [&](bool known, bool& target) {
    if (!known) {
      throw std::invalid_argument(fmt::format(
          "reading a case: operator {} has no field \"{}\" (see docs/case_format.md)", name_of(c.op), name));
    }
    target = boolean(name, value);
  };
  const bool scan = is_scan(c.op);
  if (name == "softplus") return option(scan, c.softplus);
  if (name == "D") return option(scan, c.D);
  if (name == "z") return option(scan, c.z);
  if (name == "delta_bias") return option(scan, c.delta_bias);
  if (name == "constant_B") return option(scan, c.constant_B);
  if (name == "constant_C") return option(scan, c.constant_C);
  if (name == "complex_A") return option(scan, c.complex_A);
  if (name == "bias") return option(!scan, c.bias);
  if (name == "fp32_weights") return option(!scan, c.fp32_weights);
  if (name == "initial_states") return option(true, c.initial_states);
  if (name == "final_states") return option(true, c.final_states);
  bool unused = false;
  option(false, unused);
}

void read_field(Case& c, const std::string& name, const json& value) {
  const bool scan = is_scan(c.op);
  if (name == "op") return;
  if (name == "name") {
    c.name = text_of(name, value);
  } else if (name == "dtype") {
    c.dtype = dtype_named(text_of(name, value));
  } else if (name == "dim") {
    c.dim = integer(name, value, 1, kMostChannels);
  } else if (name == "d_state" && scan) {
    c.d_state = integer(name, value, 1, 512);
  } else if (name == "groups" && scan) {
    c.groups = integer(name, value, 1, kMostChannels);
  } else if (name == "conv_width" && !scan) {
    c.conv_width = integer(name, value, 1, 16);
  } else if (name == "activation" && !scan) {
    const std::string activation = text_of(name, value);
    if (activation != "silu" && activation != "none") refuse(name, value.dump(), "silu or none");
    c.silu = activation == "silu";
  } else if (name == "map" && !scan) {
    c.map = map_named(text_of(name, value));
  } else if (name == "layout") {
    c.layout = layout_named(text_of(name, value));
  } else if (name == "seed") {
    c.seed = static_cast<std::uint64_t>(integer(name, value, 0, std::numeric_limits<std::int64_t>::max()));
  } else if (name == "rows") {
    c.rows = rows_from(value);
  } else if (name == "config") {
    if (!value.is_object()) refuse(name, value.dump(), "an object of Config fields");
    Config config(c.op);  // takes the settings, so that a wrong one is refused here
    for (const auto& [key, setting] : value.items()) {
      const std::string text = setting.is_string() ? setting.get<std::string>() : setting.dump();
      config.values.set_text(key, text);
      c.config.emplace_back(key, text);
    }
  } else {
    read_option(c, name, value);
  }
}

/// The parser's callback: of a key that is given twice it would silently keep the last value.
struct RefuseRepeats {
  std::vector<std::set<std::string>> open = {};  ///< keys of the objects around the place, outermost first
  bool operator()(int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      throw std::invalid_argument(fmt::format("reading a case: field {} is given twice", value.dump()));
    }
    return true;
  }
};

}  // namespace

Case parse_case(std::string_view text) {
  json document;
  try {
    document = json::parse(text, RefuseRepeats{});
  } catch (const json::exception& error) {
    throw std::invalid_argument(fmt::format("reading a case: not JSON: {}", reason_of(error)));
  }
  if (!document.is_object())
    throw std::invalid_argument("reading a case: expected a JSON object with \"op\" and \"rows\"");
  for (const char* needed : {"op", "rows"}) {
    if (!document.contains(needed)) {
      throw std::invalid_argument(
          fmt::format("reading a case: field \"{}\" is missing (see docs/case_format.md)", needed));
    }
  }
  Case c;
  c.op = operator_named(text_of("op", document["op"]));
  c.name = "case";
  for (const auto& [name, value] : document.items()) read_field(c, name, value);
  validate(c);
  const std::int64_t per_channel = is_scan(c.op) ? c.d_state : c.conv_width;
  const auto slots = static_cast<std::int64_t>(sequences_of(c).size());
  if (c.batch() * c.seqlen() * c.dim > kMostElements || slots * per_channel * c.dim > kMostElements) {
    throw std::invalid_argument(fmt::format(
        "reading a case: {} tokens and {} sequences of {} channels are more than the {} elements that a case may have",
        c.batch() * c.seqlen(), slots, c.dim, kMostElements));
  }
  return c;
}

json case_json(const Case& c) {
  json document = {{"op", name_of(c.op)},
                   {"name", c.name},
                   {"dtype", name_of(c.dtype)},
                   {"dim", c.dim},
                   {"layout", layout_name(c.layout)},
                   {"initial_states", c.initial_states},
                   {"final_states", c.final_states},
                   {"seed", c.seed}};
  if (is_scan(c.op)) {
    document.update({{"d_state", c.d_state},
                     {"groups", c.groups},
                     {"softplus", c.softplus},
                     {"D", c.D},
                     {"z", c.z},
                     {"delta_bias", c.delta_bias},
                     {"constant_B", c.constant_B},
                     {"constant_C", c.constant_C},
                     {"complex_A", c.complex_A}});
  } else {
    document.update({{"conv_width", c.conv_width},
                     {"bias", c.bias},
                     {"activation", c.silu ? "silu" : "none"},
                     {"fp32_weights", c.fp32_weights},
                     {"map", kMapLabels[static_cast<std::size_t>(c.map)]}});
  }
  for (const Row& row : c.rows) {
    json lengths = json::array();
    for (const Stretch& stretch : row) lengths.push_back(stretch.padding ? -stretch.length : stretch.length);
    document["rows"].push_back(std::move(lengths));
  }
  for (const auto& [key, value] : c.config) document["config"][key] = value;
  return document;
}

}  // namespace packjit::checking
