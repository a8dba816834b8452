#include "checking/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "database/printable.hpp"

namespace packjit::checking {

namespace {

std::int64_t tokens(const Row& row) {
  std::int64_t sum = 0;
  for (const Stretch& stretch : row) sum += stretch.length;
  return sum;
}

void set_if_known(FieldValues& values, std::string_view name, int value) {
  if (values.has(name)) values.set(name, value);
}

[[noreturn]] void refuse(const Case& check_case, const std::string& what) {
  throw std::invalid_argument(fmt::format("case \"{}\": {}", printable(check_case.name), what));
}

}  // namespace

std::int64_t Case::seqlen() const { return rows.empty() ? 0 : tokens(rows.front()); }

void validate(const Case& check_case) {
  if (check_case.rows.empty()) refuse(check_case, "no rows; give at least one row of stretches");
  for (std::size_t r = 0; r < check_case.rows.size(); ++r) {
    for (const Stretch& stretch : check_case.rows[r]) {
      if (stretch.length < 1) {
        refuse(check_case, fmt::format("row {} has a stretch of {} tokens; expected at least 1", r, stretch.length));
      }
    }
    const std::int64_t found = tokens(check_case.rows[r]);
    if (found != check_case.seqlen() || found == 0) {
      refuse(check_case,
             fmt::format("row {} has {} tokens, row 0 has {}; all rows must hold the same number, at least 1", r, found,
                         check_case.seqlen()));
    }
  }
  if (sequences_of(check_case).empty()) refuse(check_case, "every token is padding; give at least one sequence");
  if (check_case.dim < 1) refuse(check_case, fmt::format("dim is {}; expected at least 1", check_case.dim));
  if (is_scan(check_case.op)) {
    if (check_case.d_state < 1 || check_case.d_state > 512) {
      refuse(check_case, fmt::format("d_state is {}; expected 1 to 512", check_case.d_state));
    }
    if (check_case.groups < 1 || check_case.dim % check_case.groups != 0) {
      refuse(check_case, fmt::format("groups is {}; expected a divisor of dim {}", check_case.groups, check_case.dim));
    }
    if (check_case.groups > 1 && check_case.constant_B && check_case.constant_C) {
      refuse(check_case,
             fmt::format("groups is {}, but constant B and C have no groups; expected 1", check_case.groups));
    }
  } else if (check_case.conv_width < 1 || check_case.conv_width > 16) {
    refuse(check_case, fmt::format("conv_width is {}; expected 1 to 16", check_case.conv_width));
  }
}

std::vector<Sequence> sequences_of(const Case& check_case) {
  std::vector<Sequence> sequences;
  for (std::size_t r = 0; r < check_case.rows.size(); ++r) {
    std::int64_t start = 0;
    for (const Stretch& stretch : check_case.rows[r]) {
      if (!stretch.padding) sequences.push_back({static_cast<std::int64_t>(r), start, stretch.length});
      start += stretch.length;
    }
  }
  return sequences;
}

bool has_padding(const Case& check_case) {
  return std::ranges::any_of(check_case.rows, [](const Row& row) {
    return std::ranges::any_of(row, [](const Stretch& stretch) { return stretch.padding; });
  });
}

Row row_of(const std::vector<std::int64_t>& lengths) {
  Row row;
  for (const std::int64_t length : lengths) row.push_back({length < 0 ? -length : length, length < 0});
  return row;
}

std::optional<Boundaries> boundaries_of(const Case& check_case, Boundaries::Form form) {
  using Form = Boundaries::Form;
  const std::vector<Sequence> sequences = sequences_of(check_case);
  Boundaries boundaries;
  boundaries.form = form;
  const std::int64_t seqlen = check_case.seqlen();
  if (form == Form::rows) {
    const bool one_each =
        std::ranges::all_of(check_case.rows, [](const Row& row) { return row.size() == 1 && !row.front().padding; });
    if (!one_each) return std::nullopt;
  } else if (form == Form::cu_seqlens) {
    if (has_padding(check_case)) return std::nullopt;
    for (const Sequence& sequence : sequences) boundaries.values.push_back(sequence.row * seqlen + sequence.start);
    boundaries.values.push_back(check_case.batch() * seqlen);
  } else {
    boundaries.values.assign(static_cast<std::size_t>(check_case.batch() * seqlen), -1);
    for (std::size_t slot = 0; slot < sequences.size(); ++slot) {
      const Sequence& sequence = sequences[slot];
      for (std::int64_t i = 0; i < sequence.length; ++i) {
        // Labels fall, because nothing but their equality may matter.
        const std::int64_t label = static_cast<std::int64_t>(3 * (sequences.size() - slot));
        boundaries.values[static_cast<std::size_t>(sequence.row * seqlen + sequence.start + i)] =
            form == Form::position_indices ? i : label;
      }
    }
  }
  return boundaries;
}

SequenceMap map_of(const Case& check_case) {
  return build_sequence_map(*boundaries_of(check_case, Boundaries::Form::position_indices), check_case.batch(),
                            check_case.seqlen());
}

Spec spec_of(const Case& check_case) {
  Spec spec(check_case.op);
  FieldValues& values = spec.values;
  set_if_known(values, "dtype", static_cast<int>(check_case.dtype));
  set_if_known(values, "layout", static_cast<int>(check_case.layout));
  set_if_known(values, "initial_states", check_case.initial_states);
  set_if_known(values, "final_states", check_case.final_states);
  set_if_known(values, "checkpoints", check_case.checkpoints);
  if (is_scan(check_case.op)) {
    set_if_known(values, "d_state", static_cast<int>(check_case.d_state));
    set_if_known(values, "groups", check_case.groups > 1);
    set_if_known(values, "softplus", check_case.softplus);
    set_if_known(values, "D", check_case.D);
    set_if_known(values, "z", check_case.z);
    set_if_known(values, "delta_bias", check_case.delta_bias);
    set_if_known(values, "constant_B", check_case.constant_B);
    set_if_known(values, "constant_C", check_case.constant_C);
    set_if_known(values, "complex_A", check_case.complex_A);
  } else {
    set_if_known(values, "conv_width", static_cast<int>(check_case.conv_width));
    set_if_known(values, "bias", check_case.bias);
    set_if_known(values, "fp32_weights", check_case.fp32_weights);
    set_if_known(values, "map", static_cast<int>(check_case.map));
    if (values.has("activation")) values.set_text("activation", check_case.silu ? "silu" : "none");
  }
  return spec;
}

Case case_of(const Spec& spec) {
  const FieldValues& values = spec.values;
  const auto is_on = [&](std::string_view field) { return values.has(field) && values[field] != 0; };
  Case result;
  result.name = name_of(spec.op);
  result.op = spec.op;
  result.dtype = static_cast<Dtype>(values["dtype"]);
  result.layout = static_cast<Layout>(values["layout"]);
  result.initial_states = is_on("initial_states");
  result.final_states = is_on("final_states");
  if (is_scan(spec.op)) {
    result.d_state = values["d_state"];
    result.groups = is_on("groups") ? 2 : 1;
    result.softplus = is_on("softplus");
    result.D = is_on("D");
    result.z = is_on("z");
    result.delta_bias = is_on("delta_bias");
    result.checkpoints = is_on("checkpoints");
    result.constant_B = is_on("constant_B");
    result.constant_C = is_on("constant_C");
    result.complex_A = is_on("complex_A");
  } else {
    result.conv_width = values["conv_width"];
    result.bias = is_on("bias");
    result.silu = is_on("activation");
    result.fp32_weights = is_on("fp32_weights");
    if (values.has("map")) result.map = static_cast<MapStorage>(values["map"]);
  }
  return result;
}

Config config_of(const Case& check_case, const std::string& arch) {
  Config config = builtin_config(spec_of(check_case), arch);
  for (const auto& [name, value] : check_case.config) config.values.set_text(name, value);
  return config;
}

bool is_activation(std::string_view tensor) {
  static constexpr std::array kActivations = {"x", "u", "delta", "z", "dout", "out", "dx", "du", "dz", "ddelta"};
  return std::ranges::find(kActivations, tensor) != kActivations.end();
}

bool is_of_slots(std::string_view tensor) {
  static constexpr std::array kStates = {"initial_states", "final_states", "dinitial_states", "dfinal_states"};
  return std::ranges::find(kStates, tensor) != kStates.end();
}

Extent extent_of(const Case& check_case, std::string_view tensor) {
  if (is_of_slots(tensor)) return Extent::slot;
  const bool of_tokens = is_activation(tensor) || ((tensor == "B" || tensor == "dB") && !check_case.constant_B) ||
                         ((tensor == "C" || tensor == "dC") && !check_case.constant_C);
  return of_tokens ? Extent::token : Extent::shared;
}

}  // namespace packjit::checking
