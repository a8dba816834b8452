#include "generator/generate.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <stdexcept>

#include "generator/condition.hpp"
#include "generator/shared_fields.hpp"
#include "generator/ssm_simple.hpp"
#include "templates/device/conv_arguments.cuh"
#include "templates/device/sequence_map_arguments.cuh"
#include "templates/device/ssm_arguments.cuh"
#include "templates/embedded_templates.hpp"

namespace packjit {
namespace {

/// "tile_tokens" -> "TILE_TOKENS", "token-major" -> "TOKEN_MAJOR": the spelling inside templates. A field that is on or
/// off has HAS_ before it there, since "D" and "z" are tensors too.
std::string parameter_name(std::string_view name) {
  std::string upper;
  for (const char c : name) upper += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : (c == '-' ? '_' : c);
  return upper;
}

struct Parameter {
  int value;
  std::string_view meaning;
  bool read = false;  // decided a branch or stands in the text
  bool in_text = false;
};

/// Calls `visit` with each identifier of a line of C++, comments left out.
template <typename Visit>
void for_each_identifier(std::string_view line, Visit visit) {
  line = line.substr(0, line.find("//"));
  for (std::size_t i = 0; i < line.size();) {
    if (!is_identifier_part(line[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < line.size() && is_identifier_part(line[end])) ++end;
    if (is_identifier_start(line[i])) visit(line.substr(i, end - i));
    i = end;
  }
}

class Printer {
 public:
  Printer(const Spec& spec, const Config& config, Target target) : target_(target) {
    add(spec.values);
    add(config.values);
    // The list of primitives is one for all operators, and asks for fields that not all of them have.
    for (const Field& field : {kDtypeField, kConvertField}) {
      if (!parameters_.contains(parameter_name(field.name))) add_absent(field);
    }
  }

  void include(std::string_view name) {
    if (name == "device/parameters.cuh" || !included_.insert(std::string(name)).second) return;
    const std::string_view actual =
        name == "device/primitives.cuh" && target_ == Target::host ? "device/primitives_host.cuh" : name;
    std::string_view text = embedded_template(actual);
    if (text.empty()) throw std::logic_error(fmt::format("there is no template '{}'", actual));
    std::vector<Branch> branches;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      print_line(text.substr(0, end), actual, branches);
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    }
    if (!branches.empty()) throw std::logic_error(fmt::format("template '{}': an #if has no #endif", actual));
  }

  /// The printed text, and the parameters that stand in it.
  [[nodiscard]] const std::string& body() const { return body_; }
  [[nodiscard]] std::string constants() const {
    std::string text;
    for (const std::string& name : order_) {
      const Parameter& parameter = parameters_.at(name);
      if (parameter.in_text)
        text += fmt::format("constexpr int {} = {};  // {}\n", name, parameter.value, parameter.meaning);
    }
    return text;
  }

  void require_all_read(std::string_view root) const {
    for (const std::string& name : order_) {
      if (!parameters_.at(name).read) {
        throw std::logic_error(fmt::format("template '{}' does not read the field {}", root, name));
      }
    }
  }

 private:
  struct Branch {
    bool taken;  // a branch of this #if was printed already, or the whole of it is skipped
    bool printing;
  };

  void add(const FieldValues& values) {
    for (const Field& field : values.table()) {
      const bool is_switch = field.labels.data() == kSwitch;
      const std::string name = (is_switch ? "HAS_" : "") + parameter_name(field.name);
      const bool unused = !values.names(field);  // a later field, not asked for: older templates do not read it
      parameters_[name] = {values[field.name], field.meaning, unused};
      order_.push_back(name);
      add_labels(field);
    }
  }

  /// A field of other operators: it has no value, so it equals none of its labels.
  void add_absent(const Field& field) {
    labels_[parameter_name(field.name)] = field.minimum - 1;
    add_labels(field);
  }

  void add_labels(const Field& field) {
    for (std::size_t i = 0; i < field.labels.size(); ++i) {
      labels_[parameter_name(field.labels[i])] = field.minimum + static_cast<int>(i);
    }
  }

  long long value_of(std::string_view name) {
    if (const auto it = parameters_.find(name); it != parameters_.end()) {
      it->second.read = true;
      return it->second.value;
    }
    if (const auto it = labels_.find(name); it != labels_.end()) return it->second;
    throw std::logic_error(fmt::format("a template condition names '{}', which no field and no label is called", name));
  }

  bool decide(std::string_view condition) {
    return evaluate_condition(condition, [this](std::string_view name) { return value_of(name); }) != 0;
  }

  void print_line(std::string_view line, std::string_view file, std::vector<Branch>& branches) {
    const bool printing = branches.empty() || branches.back().printing;
    if (line.starts_with("#if ")) {
      // Conditions inside a branch not taken are still read: their fields belong to the template.
      const bool holds = decide(line.substr(4));
      branches.push_back({!printing || holds, printing && holds});
    } else if (line.starts_with("#elif ") || line == "#else" || line == "#endif") {
      if (branches.empty()) throw std::logic_error(fmt::format("a template has '{}' without #if", line));
      Branch& branch = branches.back();
      if (line == "#endif") {
        branches.pop_back();
      } else {
        const bool holds = line == "#else" || decide(line.substr(6));
        branch.printing = !branch.taken && holds;
        branch.taken = branch.taken || holds;
      }
    } else if (line.starts_with("#include \"")) {
      // All shared pieces lie in device/, whether a template or one of them includes them.
      const std::string_view piece = line.substr(line.find_last_of("\"/", line.size() - 2) + 1);
      if (printing) include(fmt::format("device/{}", piece.substr(0, piece.size() - 1)));
    } else if (printing && line != "#pragma once") {
      for_each_identifier(line, [this](std::string_view name) {
        if (const auto it = parameters_.find(name); it != parameters_.end())
          it->second.read = it->second.in_text = true;
      });
      if (line.empty() && body_.ends_with("\n\n")) return;
      // The pieces' comments refer to each other by the names of their files.
      if (!line.empty() && file != printed_) {
        if (!printed_.empty()) body_ += fmt::format("// ---- {}\n", file);
        printed_ = file;
      }
      body_ += line;
      body_ += '\n';
    }
  }

  Target target_;
  std::map<std::string, Parameter, std::less<>> parameters_;
  std::map<std::string, int, std::less<>> labels_;
  std::vector<std::string> order_;
  std::set<std::string, std::less<>> included_;
  std::string printed_;  // the file of the last line
  std::string body_;
};

std::string header(const Spec& spec, const Config& config, const std::string& key) {
  std::string text = fmt::format("// {}, generated by packjit.\n// Key: {}\n", name_of(spec.op), key);
  for (const auto& [title, values] : {std::pair{"Spec", &spec.values}, std::pair{"Config", &config.values}}) {
    text += fmt::format("// {}:\n", title);
    for (const Field& field : values->table()) {
      if (!values->names(field)) continue;
      text += fmt::format("//   {:<18}{:<12}{}\n", field.name, values->text(field.name), field.meaning);
    }
  }
  return text;
}

/// For host execution: a function without parameters for each kernel, which takes its argument from the thread.
std::string host_entries(std::string_view body, std::string_view argument_type) {
  std::string text;
  constexpr std::string_view kMark = "extern \"C\" __global__";
  for (std::size_t at = body.find(kMark); at != std::string_view::npos; at = body.find(kMark, at + 1)) {
    const std::size_t parameter = body.find(fmt::format("(const {} ", argument_type), at);
    std::size_t begin = parameter;
    while (begin > 0 && is_identifier_part(body[begin - 1])) --begin;
    const std::string_view name = body.substr(begin, parameter - begin);
    text += fmt::format(
        "extern \"C\" void packjit_enter_{0}() {{ {0}(*static_cast<const {1}*>(packjit_thread->argument)); }}\n", name,
        argument_type);
  }
  return text;
}

/// The one argument of an operator's kernels.
struct ArgumentType {
  std::string_view name;
  std::size_t bytes;
};
ArgumentType argument_type(Operator op) {
  if (op == Operator::sequence_map) return {"MapArguments", sizeof(MapArguments)};
  if (is_scan(op)) return {"SsmArguments", sizeof(SsmArguments)};
  return {"ConvArguments", sizeof(ConvArguments)};
}

std::string template_of(const Spec& spec) {
  if (is_scan(spec.op) && is_simple_scan(spec)) {
    return is_backward(spec.op) ? "ssm_pack_simple_bwd.cu" : "ssm_pack_simple_fwd.cu";
  }
  return fmt::format("{}.cu", name_of(spec.op));
}

}  // namespace

std::string source_key(const Spec& spec, const Config& config) {
  return fmt::format("{} {} {}", name_of(spec.op), spec.values.text(), config.values.text());
}

Source generate(const Spec& spec, const Config& config, Target target) {
  check_pair(spec, config);
  const std::string root = template_of(spec);
  Printer printer(spec, config, target);
  printer.include(root);
  printer.require_all_read(root);

  const ArgumentType argument = argument_type(spec.op);
  Source source;
  source.key = source_key(spec, config);
  source.text = fmt::format(
      "{}\n{}\n{}\nstatic_assert(sizeof({}) == {}, \"host and device disagree on the kernels' argument\");\n",
      header(spec, config, source.key), printer.constants(), printer.body(), argument.name, argument.bytes);
  if (target == Target::host) source.text += host_entries(source.text, argument.name);
  return source;
}

}  // namespace packjit
