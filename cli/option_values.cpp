#include "cli/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace packjit {
namespace {

bool is_given(std::string& text) { return !text.empty(); }

/// What the parser makes of a flag without a value, or of one that says so itself.
bool is_switch(std::string& text) { return text == "true" || text == "false"; }

/// Whether the whole text is a number. Writes an integer without leading zeros: the parser takes them for octal.
template <typename Number>
bool is_number(std::string& text) {
  const char* const end = text.data() + text.size();
  Number number = 0;
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || parsed != end) return false;
  if constexpr (std::integral<Number>) text = fmt::format("{}", number);
  return true;
}

struct Kind {
  std::string_view type, expected;
  bool (*accepts)(std::string& text);
};
constexpr Kind kKinds[] = {
    {"INT", "a decimal integer of at most 64 bits", is_number<std::int64_t>},
    {"UINT", "a decimal integer of at most 64 bits, not negative", is_number<std::uint64_t>},
    {"FLOAT", "a decimal number such as 0.5", is_number<double>},
    {"FILE", "a file", is_given},
    {"FOLDER", "a folder", is_given},
    {"PATH", "a file or a folder", is_given},
    {"ARCH", "an architecture such as sm_90", is_given},
    {"PYTHON", "a Python interpreter", is_given},
    {"", "a value", is_given},  // any other
};
constexpr Kind kFlag = {"", "nothing, true or false behind a flag", is_switch};

const Kind& kind_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return kFlag;
  // Behind the colon are the ranges and names that the option is checked for.
  const std::string type = option.get_type_name();
  const std::string name = option.get_positional() ? option.get_name() : type.substr(0, type.find(':'));
  const Kind* const last = std::prev(std::end(kKinds));
  return *std::find_if(std::begin(kKinds), last, [&](const Kind& kind) { return kind.type == name; });
}

}  // namespace

void check_option_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const Kind& kind = kind_of(*option);
    const auto check = [&kind](std::string& text) {
      return kind.accepts(text) ? std::string() : fmt::format("expected {}, found '{}'", kind.expected, text);
    };
    option->transform(CLI::Validator(check, ""));  // before the option's other checks, which read numbers as well
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) check_option_values(*command);
}

}  // namespace packjit
