#pragma once

#include <map>
#include <string>
#include <vector>

#include "checking/case.hpp"

namespace packjit::checking {

/// What a case must give, in fp64, token-major.
struct Reference {
  std::map<std::string, std::vector<double>, std::less<>> outputs;
  double reduction = 0;  ///< see error_bounds.hpp
};

/// Runs the oracle on each sequence alone, on the same rounded inputs (token-major, as from make_inputs), and puts the
/// results in their places: padding is zero, gradients of parameters are summed over sequences.
[[nodiscard]] Reference compute_reference(const Case& check_case, const HostTensors& inputs);

}  // namespace packjit::checking
