#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"

namespace packjit {

/// The options OP, SPEC and --set of a subcommand, built from the operators' field tables: each Spec field is a flag of
/// its name with dashes ("--d-state 16", "--softplus off"). Lives as long as the subcommand.
class SpecOptions {
 public:
  /// Adds OP and a flag for each Spec field of any operator; which of them the operator has is checked by spec().
  void add_operator_and_spec(CLI::App& command);
  /// Adds --set key=value for Config fields.
  void add_config(CLI::App& command);

  /// What was given. Throws std::invalid_argument naming the flag, what was found and what is allowed.
  [[nodiscard]] Operator op() const;
  [[nodiscard]] Spec spec() const;
  /// The built-in Config for the architecture ("sm_90", "host") with what --set changes, checked against the Spec.
  [[nodiscard]] Config config(const Spec& spec, const std::string& arch) const;
  /// Another Config in place of the built-in one.
  [[nodiscard]] Config config(const Spec& spec, Config config) const;
  /// Throws std::invalid_argument where OP, a flag or a --set that was given says something else than the key of a
  /// source file, whose Spec and Config these are.
  void require_agreement(const Spec& spec, const Config& config) const;
  /// Whether --set gave the field.
  [[nodiscard]] bool sets(std::string_view field) const;

 private:
  struct Flag {
    std::string_view field;
    CLI::Option* option;
    std::string value;
  };
  std::string op_;
  std::deque<Flag> flags_;  // a deque, because the parser keeps addresses of the values
  std::vector<std::string> settings_;
};

/// The options that were given, as they would be typed again: " --tokens 4096 --json". Of the values of `paths` only
/// the last part is shown, since folders belong to one machine.
[[nodiscard]] std::string given_options(const CLI::App& command, const std::vector<std::string>& paths);

/// Those that are named; all four where none is. Throws std::invalid_argument that lists the names.
[[nodiscard]] std::vector<Operator> chosen_operators(const std::vector<std::string>& names);

/// "--d-state" for the field "d_state".
[[nodiscard]] std::string flag_name(std::string_view field);

}  // namespace packjit
