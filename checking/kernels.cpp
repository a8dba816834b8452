#include "checking/kernels.hpp"

#include <algorithm>

#include "checking/checks.hpp"

namespace packjit::checking {

namespace {

/// Views without memory, laid out as run_on_host_tensors lays out its copies.
TensorViews views_of(const Case& c) {
  TensorViews views;
  const std::int64_t tokens = c.seqlen();
  for (const TensorRule& rule : tensor_rules(c.op)) {
    TensorView view;
    view.type = element_type(c.dtype);
    if (rule.shape == "batch seqlen dim") {
      view.size = {c.batch(), tokens, c.dim};
      if (c.layout == Layout::token_major) view.stride = {tokens * c.dim, c.dim, 1};
      if (c.layout == Layout::channel_major) view.stride = {tokens * c.dim, 1, tokens};
      if (c.layout == Layout::strided) view.stride = {2 * tokens * c.dim + 3, 2 * c.dim + 3, 2};
    } else if (rule.name == "B" || rule.name == "C") {
      if (extent_of(c, rule.name) == Extent::shared) continue;
      const std::int64_t values = c.d_state * (c.complex_A ? 2 : 1);
      view.size = {c.batch(), tokens, c.groups, values};
      view.stride = {tokens * c.groups * values, c.groups * values, values, 1};
    } else {
      continue;
    }
    views.emplace(rule.name, std::move(view));
  }
  return views;
}

}  // namespace

Kernel kernel_of(const Case& check_case, const Config& config) {
  Kernel kernel(spec_of(check_case), config);
  specialise(kernel.first, kernel.second, views_of(check_case));
  return kernel;
}

std::vector<Kernel> kernels_of(const std::vector<PlannedCase>& matrix, const std::string& arch) {
  std::vector<Kernel> kernels;
  const auto add = [&](Kernel kernel) {
    if (std::ranges::find(kernels, kernel) == kernels.end()) kernels.push_back(std::move(kernel));
  };
  for (const PlannedCase& planned : matrix) {
    const Case& c = planned.check_case;
    add(kernel_of(c, config_of(c, arch)));
    if (std::ranges::find(planned.checks, CheckKind::second_config) != planned.checks.end()) {
      add(kernel_of(c, second_config(c, arch)));
      add(kernel_of(c, little_work_config(c, arch)));
    }
  }
  return kernels;
}

}  // namespace packjit::checking
