#include "generator/operators.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "generator/conv1d_pack.hpp"
#include "generator/sequence_map.hpp"
#include "generator/ssm_pack.hpp"

namespace packjit {

std::size_t size_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

std::string_view name_of(Dtype dtype) { return kDtypeLabels[static_cast<std::size_t>(dtype)]; }

std::string_view name_of(Operator op) {
  constexpr std::string_view kNames[] = {"conv1d_pack_fwd", "conv1d_pack_bwd", "ssm_pack_fwd", "ssm_pack_bwd",
                                         "sequence_map"};
  return kNames[static_cast<std::size_t>(op)];
}

Operator operator_named(std::string_view name, std::span<const Operator> among) {
  std::vector<std::string_view> names;
  for (Operator op : among) {
    if (name_of(op) == name) return op;
    names.push_back(name_of(op));
  }
  const std::string_view last = names.back();
  names.pop_back();
  throw std::invalid_argument(
      fmt::format("there is no operator '{}'; the operators are {} and {}", name, fmt::join(names, ", "), last));
}

bool is_scan(Operator op) { return op == Operator::ssm_pack_fwd || op == Operator::ssm_pack_bwd; }
bool is_backward(Operator op) { return op == Operator::conv1d_pack_bwd || op == Operator::ssm_pack_bwd; }

Spec::Spec(Operator operation) : op(operation), values(spec_fields(operation)) {}
Config::Config(Operator operation) : op(operation), values(config_fields(operation)) {}

std::span<const Field> spec_fields(Operator op) {
  if (op == Operator::sequence_map) return map_spec_fields();
  return is_scan(op) ? ssm_spec_fields() : conv_spec_fields();
}

std::span<const Field> config_fields(Operator op) {
  if (op == Operator::sequence_map) return map_config_fields();
  return is_scan(op) ? ssm_config_fields(is_backward(op)) : conv_config_fields(is_backward(op));
}

std::span<const TensorRule> tensor_rules(Operator op) {
  if (op == Operator::sequence_map) return {};
  return is_scan(op) ? ssm_tensor_rules(is_backward(op)) : conv_tensor_rules(is_backward(op));
}

std::vector<TensorRule> tensor_rules(const Spec& spec) {
  const std::span<const TensorRule> usual = tensor_rules(spec.op);
  std::vector<TensorRule> rules(usual.begin(), usual.end());
  if (is_scan(spec.op)) {
    ssm_adapt_rules(spec, rules);
  } else {
    conv_adapt_rules(spec, rules);
  }
  return rules;
}

void check_pair(const Spec& spec, const Config& config) {
  if (spec.op != config.op) {
    throw std::invalid_argument(
        fmt::format("a Config of {} was given for a Spec of {}", name_of(config.op), name_of(spec.op)));
  }
  if (spec.op == Operator::sequence_map) {
    check_map_pair(config);
  } else if (is_scan(spec.op)) {
    check_ssm_pair(spec, config);
  } else {
    check_conv_pair(spec, config);
  }
}

void check_arch(const Config& config, std::string_view arch) {
  constexpr std::string_view kPrefix = "sm_";
  if (!arch.starts_with(kPrefix)) return;
  int number = 0;
  for (const char c : arch.substr(kPrefix.size())) {
    if (c < '0' || c > '9') break;  // sm_90a
    number = number * 10 + (c - '0');
  }
  constexpr int kOldest = 75;
  if (number < kOldest) return;  // none that NVRTC knows, and so it will say
  struct Need {
    std::string_view field;
    int since;  // for every value but 0
    std::string_view what;
  };
  constexpr Need kNeeds[] = {{"copies", 80, "asynchronous copies"},
                             {"stages", 80, "asynchronous copies"},
                             {"channel_sums", 80, "tf32 on tensor cores"},
                             {"convert", 80, "the conversion to bf16"},
                             {"early_sum", 90, "launches that begin early"}};
  for (const Need& need : kNeeds) {
    if (!config.values.has(need.field) || config.values[need.field] == 0 || number >= need.since) continue;
    Config without = config;
    without.values.set(need.field, 0);
    throw std::invalid_argument(fmt::format("{} = {} needs {}, which came with sm_{}; for {} set {}={}", need.field,
                                            config.values.text(need.field), need.what, need.since, arch, need.field,
                                            without.values.text(need.field)));
  }
}

Plan plan(const Spec& spec, const Config& config, const Problem& problem) {
  check_pair(spec, config);
  if (spec.op == Operator::sequence_map) return map_plan(spec, config, problem);
  return is_scan(spec.op) ? ssm_plan(spec, config, problem) : conv_plan(spec, config, problem);
}

std::int64_t& Sizes::operator[](std::string_view symbol) {
  const std::pair<std::string_view, std::int64_t*> table[] = {
      {"batch", &batch},          {"seqlen", &seqlen},           {"dim", &dim},
      {"groups", &groups},        {"d_state", &d_state},         {"conv_width", &conv_width},
      {"history", &history},      {"n_sequences", &n_sequences}, {"n_checkpoints", &n_checkpoints},
      {"2*d_state", &state_reals}};
  for (const auto& [name, size] : table) {
    if (name == symbol) return *size;
  }
  throw std::invalid_argument(fmt::format("'{}' is not the symbol of a size", symbol));
}

std::int64_t Sizes::operator[](std::string_view symbol) const { return (*const_cast<Sizes*>(this))[symbol]; }

std::vector<std::string_view> shape_symbols(std::string_view shape) {
  std::vector<std::string_view> symbols;
  while (!shape.empty()) {
    const std::size_t end = shape.find(' ');
    symbols.push_back(shape.substr(0, end));
    shape = end == std::string_view::npos ? std::string_view{} : shape.substr(end + 1);
  }
  return symbols;
}

void require_power_of_two(const Config& config, std::string_view field) {
  const int value = config.values[field];
  if ((value & (value - 1)) != 0) {
    throw std::invalid_argument(fmt::format("{} = {} must be a power of two", field, value));
  }
}

void check_vector(const Spec& spec, const Config& config) {
  require_power_of_two(config, "vector");
  const int vector = config.values["vector"];
  const int bytes = vector * static_cast<int>(size_of(static_cast<Dtype>(spec.values["dtype"])));
  if (bytes > kLongestAccess) {
    throw std::invalid_argument(fmt::format("vector = {} of {} is an access of {} bytes; the longest is {} bytes",
                                            vector, spec.values.text("dtype"), bytes, kLongestAccess));
  }
  if (vector > 1 && spec.values["layout"] != static_cast<int>(Layout::token_major)) {
    throw std::invalid_argument(fmt::format("vector = {} needs layout token-major; with layout {} it must be 1", vector,
                                            spec.values.text("layout")));
  }
}

int longest_vector(const Spec& spec) {
  if (spec.values["layout"] != static_cast<int>(Layout::token_major)) return 1;
  return kLongestAccess / static_cast<int>(size_of(static_cast<Dtype>(spec.values["dtype"])));
}

void check_min_blocks(const Config& config) {
  constexpr int kMostThreads = 2048;  // of a multiprocessor
  if (config.values["block"] * config.values["min_blocks"] > kMostThreads) {
    throw std::invalid_argument(
        fmt::format("min_blocks = {} of block = {} are more than the {} threads of a multiprocessor",
                    config.values["min_blocks"], config.values["block"], kMostThreads));
  }
}

}  // namespace packjit
