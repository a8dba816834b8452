#include "tuning/operator_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace packjit {

Spec spec_for(Operator op, const OperatorChoices& choices) {
  Spec spec(op);
  spec.values.set_text("dtype", choices.dtype);
  if (is_scan(op)) {
    spec.values.set("d_state", choices.d_state);
  } else {
    spec.values.set("conv_width", choices.conv_width);
  }
  return spec;
}

std::vector<Variant> variants_of(const Spec& spec) {
  if (!spec.values.has("checkpoints")) return {{"", spec}};
  std::vector<Variant> variants = {{"recomputed", spec}, {"stored", spec}};
  for (int stored = 0; stored < 2; ++stored)
    variants[static_cast<std::size_t>(stored)].spec.values.set("checkpoints", stored);
  if (spec.values["checkpoints"] != 0) std::swap(variants[0], variants[1]);
  return variants;
}

Config with_settings(Config config, std::span<const std::string> settings) {
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument(fmt::format(
          "--set '{}': expected key=value, as in --set block=128 or --set ssm_pack_bwd.block=128", setting));
    }
    std::string key = setting.substr(0, equals);
    if (const std::size_t dot = key.find('.'); dot != std::string::npos) {
      if (operator_named(key.substr(0, dot)) != config.op) continue;
      key.erase(0, dot + 1);
    }
    config.values.set_text(key, setting.substr(equals + 1));
  }
  return config;
}

bool has_tensor(const Spec& spec, const TensorRule& rule) { return rule.field.empty() || spec.values[rule.field] != 0; }

std::int64_t element_count(const TensorRule& rule, const Sizes& sizes) {
  std::int64_t count = 1;
  for (const std::string_view symbol : shape_symbols(rule.shape)) {
    if (sizes[symbol] < 1) {
      throw std::logic_error(fmt::format("the batch does not have the size {} of tensor {}", symbol, rule.name));
    }
    count *= sizes[symbol];
  }
  return count;
}

std::int64_t element_bytes(const TensorRule& rule, const Spec& spec) {
  const Dtype dtype = rule.always_fp32 ? Dtype::fp32 : static_cast<Dtype>(spec.values["dtype"]);
  return static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t tensor_bytes(const Spec& spec, const Sizes& sizes) {
  std::int64_t bytes = 0;
  for (const TensorRule& rule : tensor_rules(spec)) {
    if (has_tensor(spec, rule)) bytes += element_count(rule, sizes) * element_bytes(rule, spec);
  }
  return bytes;
}

std::int64_t saved_bytes(const Spec& forward, const Spec& backward, const Sizes& sizes) {
  std::int64_t bytes = 0;
  for (const TensorRule& read : tensor_rules(backward)) {
    if (read.output || !has_tensor(backward, read)) continue;
    for (const TensorRule& written : tensor_rules(forward)) {
      if (written.output && written.name == read.name)
        bytes += element_count(read, sizes) * element_bytes(read, backward);
    }
  }
  return bytes;
}

}  // namespace packjit
