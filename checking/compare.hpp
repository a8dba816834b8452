#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "checking/case.hpp"
#include "checking/reference.hpp"
#include "checking/report.hpp"

namespace packjit::checking {

/// Outputs (token-major) against a reference: for each tensor the worst relative error of the whole tensor, of each
/// sequence and of the padding (which must be exactly zero). A missing tensor, or one of the wrong dtype or size, is an
/// infinite error.
[[nodiscard]] std::vector<Result> compare_with_reference(CheckKind kind, const Case& check_case,
                                                         const HostTensors& outputs, const Reference& reference);

/// error_bound() of an output of the case: constant B and C are parameters as A is.
[[nodiscard]] double bound_of(const Case& check_case, std::string_view tensor, double reduction);

/// Outputs of two calls, bit for bit. With `changed_slot`, that sequence's parts and the shared reductions may differ.
[[nodiscard]] std::vector<Result> compare_bits(CheckKind kind, const Case& check_case, const HostTensors& a,
                                               const HostTensors& b, std::optional<std::size_t> changed_slot = {});

}  // namespace packjit::checking
