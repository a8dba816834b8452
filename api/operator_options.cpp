#include "api/operator_options.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "generator/ssm_simple.hpp"

namespace packjit::api {
namespace {

enum class Kind { number, on_off };
struct Option {
  std::string_view name;   ///< of the member
  std::string_view field;  ///< of the Spec
  Kind kind;
  std::int32_t packjit_operator_options::*member;
};
constexpr Option kOptions[] = {
    {"conv_width", "conv_width", Kind::number, &packjit_operator_options::conv_width},
    {"bias", "bias", Kind::on_off, &packjit_operator_options::bias},
    {"silu", "activation", Kind::on_off, &packjit_operator_options::silu},
    {"map_storage", "map", Kind::number, &packjit_operator_options::map_storage},
    {"d_state", "d_state", Kind::number, &packjit_operator_options::d_state},
    {"softplus", "softplus", Kind::on_off, &packjit_operator_options::softplus},
    {"D", "D", Kind::on_off, &packjit_operator_options::D},
    {"z", "z", Kind::on_off, &packjit_operator_options::z},
    {"delta_bias", "delta_bias", Kind::on_off, &packjit_operator_options::delta_bias},
    {"checkpoints", "checkpoints", Kind::on_off, &packjit_operator_options::checkpoints},
    {"initial_states", "initial_states", Kind::on_off, &packjit_operator_options::initial_states},
    {"final_states", "final_states", Kind::on_off, &packjit_operator_options::final_states},
    {"constant_B", "constant_B", Kind::on_off, &packjit_operator_options::constant_B},
    {"constant_C", "constant_C", Kind::on_off, &packjit_operator_options::constant_C},
    {"complex_A", "complex_A", Kind::on_off, &packjit_operator_options::complex_A},
    {"fp32_weights", "fp32_weights", Kind::on_off, &packjit_operator_options::fp32_weights},
};

/// 0 leaves the Spec's default.
void set(Spec& spec, const Option& option, std::int32_t given) {
  if (given == 0) return;
  if (!spec.values.has(option.field)) {
    throw std::invalid_argument(fmt::format("packjit_operator_options: {} is {}, but {} has no such option; leave it 0",
                                            option.name, given,
                                            packjit::is_scan(spec.op) ? "ssm_pack" : "conv1d_pack"));
  }
  if (option.kind == Kind::on_off && given != PACKJIT_OFF && given != PACKJIT_ON) {
    throw std::invalid_argument(fmt::format(
        "packjit_operator_options: {} is {}; expected PACKJIT_DEFAULT (0), PACKJIT_OFF (1) or PACKJIT_ON (2)",
        option.name, given));
  }
  try {
    spec.values.set(option.field, option.kind == Kind::on_off ? given - PACKJIT_OFF : given);
  } catch (const std::invalid_argument& error) {  // which has the field's name, not always the member's
    throw std::invalid_argument(
        fmt::format("packjit_operator_options: {} is {}: {}", option.name, given, error.what()));
  }
}

}  // namespace

Dtype activation_dtype(std::int32_t dtype, std::string_view what) {
  const ElementType type = element_type(dtype, what);
  try {
    return dtype_of(type);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}: {}", what, error.what()));
  }
}

std::pair<Spec, Spec> specs_of(const packjit_operator_options& options) {
  if (options.op != PACKJIT_CONV1D_PACK && options.op != PACKJIT_SSM_PACK) {
    throw std::invalid_argument(fmt::format(
        "packjit_operator_options: op is {}; expected PACKJIT_CONV1D_PACK (1) or PACKJIT_SSM_PACK (2)", options.op));
  }
  const bool scan = options.op == PACKJIT_SSM_PACK;
  std::pair specs{Spec(scan ? Operator::ssm_pack_fwd : Operator::conv1d_pack_fwd),
                  Spec(scan ? Operator::ssm_pack_bwd : Operator::conv1d_pack_bwd)};
  for (Spec* spec : {&specs.first, &specs.second}) {
    if (options.dtype != 0) {
      spec->values.set("dtype", static_cast<int>(activation_dtype(options.dtype, "packjit_operator_options: dtype")));
    }
    for (const Option& option : kOptions) set(*spec, option, options.*option.member);
    if (scan && is_simple_scan(*spec)) check_simple_scan(*spec);
  }
  return specs;
}

packjit_operator_options options_with(Operator op, GivenTensors tensors) {
  packjit_operator_options options{};
  options.struct_size = sizeof(options);
  const std::span<const TensorRule> rules = tensor_rules(op);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].field.empty()) continue;
    const auto* option = std::ranges::find(kOptions, rules[i].field, &Option::field);
    std::int32_t& on_off = options.*option->member;
    // A gradient does not come without what it is the gradient of; where it does, the call is refused for that.
    on_off = std::max<std::int32_t>(on_off, tensors[i] == nullptr ? PACKJIT_OFF : PACKJIT_ON);
  }
  return options;
}

}  // namespace packjit::api
