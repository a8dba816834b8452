#include "runtime/edited_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

#include "database/builtin_config.hpp"

namespace packjit {
namespace {

constexpr std::string_view kMark = "// Key: ";

/// Whose built-in Config `packjit generate` starts from where no --arch is given.
const char* arch_of(Target target) { return target == Target::host ? "host" : "sm_90"; }

/// What follows the mark on the first line that begins with it.
std::optional<std::string_view> key_line(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(kMark)) return line.substr(kMark.size());
    at = end + 1;
  }
  return std::nullopt;
}

/// Splits at the first `mark`; without one, all of the text is the first part.
std::string_view take(std::string_view& text, char mark) {
  const std::size_t end = std::min(text.find(mark), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

SourceOrigin parse_key(std::string_view key) {
  std::string_view rest = key;
  const Operator op = operator_named(take(rest, ' '), kTemplates);
  SourceOrigin origin{Spec(op), Config(op)};
  while (!rest.empty()) {
    std::string_view value = take(rest, ' ');
    const std::string_view name = take(value, '=');
    (origin.spec.values.has(name) ? origin.spec.values : origin.config.values).set_text(name, value);
  }
  check_pair(origin.spec, origin.config);
  // Fields that are missing, repeated or in another order are another version's.
  if (source_key(origin.spec, origin.config) != key) {
    throw std::invalid_argument(fmt::format("its fields are not those of this version, which prints {}",
                                            source_key(origin.spec, origin.config)));
  }
  return origin;
}

std::string advice(const Spec& spec, const Config& config, Target target) {
  return fmt::format("; a source that fits is printed by: {}", generate_line(spec, config, target));
}

bool is_host_form(std::string_view text) { return text.find("packjit_enter_") != std::string_view::npos; }

}  // namespace

std::string generate_line(const Spec& spec, const Config& config, Target target) {
  std::string line = fmt::format("packjit generate {}", name_of(spec.op));
  for (const Field& field : spec.values.table()) {
    if (spec.values[field.name] == field.fallback) continue;
    std::string flag(field.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    line += fmt::format(" --{} {}", flag, spec.values.text(field.name));
  }
  const Config builtin = builtin_config(spec, arch_of(target));
  for (const Field& field : config.values.table()) {
    if (config.values[field.name] == builtin.values[field.name]) continue;
    line += fmt::format(" --set {}={}", field.name, config.values.text(field.name));
  }
  if (target == Target::host) line += " --target host";
  return line + " -o kernel.cu";
}

SourceOrigin origin_of(std::string_view text, const Spec& spec, const Config& config, Target target) {
  const std::optional<std::string_view> key = key_line(text);
  if (!key) {
    throw std::invalid_argument(
        fmt::format("--source: the file has no line '{}...', which generated source has as its second line and which "
                    "says what the kernel was made for; keep that line when you edit{}",
                    kMark, advice(spec, config, target)));
  }
  try {
    return parse_key(*key);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("--source: the key '{}' is not one of this version: {}{}",
                                            key->substr(0, 500), error.what(), advice(spec, config, target)));
  }
}

void require_target(std::string_view text, const SourceOrigin& origin, Target target) {
  const bool host = target == Target::host;
  if (is_host_form(text) == host) return;
  throw std::invalid_argument(
      fmt::format("--source: the file is {}{}",
                  host ? "CUDA source, without the functions packjit_enter_... that host execution "
                         "calls; generate it with --target host"
                       : "source for host execution; for a GPU, generate it without --target host",
                  advice(origin.spec, origin.config, target)));
}

void require_fitting(const SourceOrigin& origin, const Spec& call, int call_vector, Target target) {
  const Config& config = origin.config;
  if (origin.spec.op != call.op) {
    throw std::invalid_argument(fmt::format("--source: the file is a kernel of {}; needed: {}{}",
                                            name_of(origin.spec.op), name_of(call.op),
                                            advice(call, builtin_config(call, arch_of(target)), target)));
  }
  std::string found, needed;
  const auto differs = [&](std::string_view name, const std::string& in_file, const std::string& in_call) {
    found += fmt::format("{}{}={}", found.empty() ? "" : " ", name, in_file);
    needed += fmt::format("{}{}={}", needed.empty() ? "" : " ", name, in_call);
  };
  for (const Field& field : call.values.table()) {
    if (origin.spec.values[field.name] != call.values[field.name]) {
      differs(field.name, origin.spec.values.text(field.name), call.values.text(field.name));
    }
  }
  Config fitting = config;
  if (config.values["vector"] > call_vector) {
    differs("vector", config.values.text("vector"), fmt::format("{}", call_vector));
    fitting.values.set("vector", call_vector);
  }
  if (found.empty()) return;
  try {
    check_pair(call, fitting);
  } catch (const std::invalid_argument&) {  // its Config holds for its own Spec only
    fitting = builtin_config(call, arch_of(target));
    fitting.values.set("vector", std::min(fitting.values["vector"], call_vector));
  }
  throw std::invalid_argument(fmt::format("--source: the file was made for {}; the call needs {}{}", found, needed,
                                          advice(call, fitting, target)));
}

}  // namespace packjit
