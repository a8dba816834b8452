#include "cli/spec_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "cli/terminal.hpp"
#include "database/builtin_config.hpp"

namespace packjit {
namespace {

std::string allowed_text(const Field& field) {
  if (!field.labels.empty()) return fmt::format("{}", fmt::join(field.labels, "|"));
  return fmt::format("{} to {}", field.minimum, field.maximum);
}

std::string fallback_text(const Field& field) {
  if (field.labels.empty()) return fmt::format("{}", field.fallback);
  return std::string(field.labels[static_cast<std::size_t>(field.fallback - field.minimum)]);
}

// Which operators have the field, where not all that take tensors do.
std::string owners(std::string_view name) {
  bool scan = false, convolution = false;
  for (Operator op : kOperators) {
    if (Spec(op).values.has(name)) (is_scan(op) ? scan : convolution) = true;
  }
  if (scan && convolution) return {};
  if (!scan && !convolution) return "sequence_map only; ";
  return scan ? "ssm_pack only; " : "conv1d_pack only; ";
}

struct Setting {
  std::string_view key, value;
};
Setting split_setting(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw std::invalid_argument(fmt::format("--set '{}': expected key=value, as in --set block=128", text));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

std::string given_options(const CLI::App& command, const std::vector<std::string>& paths) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    if (!option->get_positional()) text += " " + option->get_name();
    if (option->get_expected_max() == 0) continue;  // a flag
    const bool is_path = std::find(paths.begin(), paths.end(), option->get_name()) != paths.end();
    for (const std::string& value : option->results()) {
      text += " " + shell_word(is_path ? std::filesystem::path(value).filename().string() : value);
    }
  }
  return text;
}

std::vector<Operator> chosen_operators(const std::vector<std::string>& names) {
  if (names.empty()) return {std::begin(kOperators), std::end(kOperators)};
  std::vector<Operator> chosen;
  chosen.reserve(names.size());
  for (const std::string& name : names) chosen.push_back(operator_named(name));
  return chosen;
}

std::string flag_name(std::string_view field) {
  std::string name = "--" + std::string(field);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void SpecOptions::add_operator_and_spec(CLI::App& command) {
  command.add_option("OP", op_, "conv1d_pack_fwd, conv1d_pack_bwd, ssm_pack_fwd, ssm_pack_bwd or sequence_map")
      ->required();
  for (Operator op : kTemplates) {
    for (const Field& field : spec_fields(op)) {
      const auto known = [&](const Flag& flag) { return flag.field == field.name; };
      if (std::any_of(flags_.begin(), flags_.end(), known)) continue;
      Flag& flag = flags_.emplace_back(Flag{field.name, nullptr, {}});
      flag.option = command.add_option(flag_name(field.name), flag.value,
                                       fmt::format("{} ({}{}; default {})", field.meaning, owners(field.name),
                                                   allowed_text(field), fallback_text(field)));
      flag.option->group("SPEC")->type_name("VALUE");
    }
  }
}

void SpecOptions::add_config(CLI::App& command) {
  std::string help = "sets a Config field; may be repeated. ";
  for (Operator op : kTemplates) {
    help += fmt::format("{}:", name_of(op));
    for (const Field& field : config_fields(op)) help += fmt::format(" {}", field.name);
    help += op == Operator::sequence_map ? "" : ". ";
  }
  // One value a flag, or the next positional argument would be taken for another setting.
  command.add_option("--set", settings_, help)->type_name("KEY=VALUE")->expected(1)->take_all();
}

Operator SpecOptions::op() const { return operator_named(op_, kTemplates); }

Spec SpecOptions::spec() const {
  Spec spec(op());
  for (const Flag& flag : flags_) {
    if (flag.option->count() == 0) continue;
    if (!spec.values.has(flag.field)) {
      std::vector<std::string> names;
      for (const Field& field : spec_fields(spec.op)) names.push_back(flag_name(field.name));
      throw std::invalid_argument(fmt::format("{} does not apply to {}: its flags are {}", flag_name(flag.field),
                                              name_of(spec.op), fmt::join(names, ", ")));
    }
    try {
      spec.values.set_text(flag.field, flag.value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("{}: {}", flag_name(flag.field), error.what()));
    }
  }
  return spec;
}

Config SpecOptions::config(const Spec& spec, const std::string& arch) const {
  return config(spec, builtin_config(spec, arch));
}

Config SpecOptions::config(const Spec& spec, Config config) const {
  std::set<std::string_view> seen;
  for (const std::string& text : settings_) {
    const Setting setting = split_setting(text);
    if (!seen.insert(setting.key).second) {
      throw std::invalid_argument(fmt::format("--set {}: {} is set twice; once is enough", text, setting.key));
    }
    try {
      config.values.set_text(setting.key, setting.value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("--set {}: {}", text, error.what()));
    }
  }
  check_pair(spec, config);
  return config;
}

void SpecOptions::require_agreement(const Spec& spec, const Config& config) const {
  const auto differ = [&](const std::string& option, const std::string& found) {
    throw std::invalid_argument(
        fmt::format("{} contradicts the key of the file given by --source, which was made with {}; leave the option "
                    "out, or print the source again with it: packjit generate {} {} ...",
                    option, found, name_of(spec.op), option));
  };
  if (!op_.empty() && op() != spec.op) {
    throw std::invalid_argument(
        fmt::format("--source: the file is a kernel of {}; needed: {}, as packjit generate {} prints it",
                    name_of(spec.op), op_, op_));
  }
  if (!flags_.empty()) {
    const Spec given = this->spec();
    for (const Flag& flag : flags_) {
      if (flag.option->count() == 0 || given.values[flag.field] == spec.values[flag.field]) continue;
      differ(fmt::format("{} {}", flag_name(flag.field), flag.value),
             fmt::format("{}={}", flag.field, spec.values.text(flag.field)));
    }
  }
  for (const std::string& text : settings_) {
    const Setting setting = split_setting(text);
    Config given = config;
    try {
      given.values.set_text(setting.key, setting.value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("--set {}: {}", text, error.what()));
    }
    if (given != config) {
      differ("--set " + text, fmt::format("{}={}", setting.key, config.values.text(setting.key)));
    }
  }
}

bool SpecOptions::sets(std::string_view field) const {
  return std::any_of(settings_.begin(), settings_.end(),
                     [&](const std::string& text) { return split_setting(text).key == field; });
}

}  // namespace packjit
