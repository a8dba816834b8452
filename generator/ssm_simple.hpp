#pragma once

#include <vector>

#include "generator/operators.hpp"
#include "generator/search_space.hpp"
#include "generator/ssm_pack.hpp"

namespace packjit {

// ssm_pack with complex A, or with B or C that are the same for all tokens: constraints, search space and launches of
// templates/ssm_pack_simple_{fwd,bwd}.cu, which are written to be read. Fields and tensors are those of ssm_pack.

/// Whether a Spec of ssm_pack has one of these options.
[[nodiscard]] bool is_simple_scan(const Spec& spec);
/// Throws std::invalid_argument where such a Spec has what does not go with it: stored checkpoints, groups of
/// constants.
void check_simple_scan(const Spec& spec);
/// The same for a pair, and: most fields of a Config are of the other kernels, and have one value here.
void check_simple_scan_pair(const Spec& spec, const Config& config);
[[nodiscard]] std::vector<FieldChoices> simple_scan_choices(const Spec& spec);
/// The Config that is built in, the same for all shapes.
[[nodiscard]] Config simple_scan_config(const Spec& spec);
[[nodiscard]] SsmWorkspace simple_scan_workspace(const Spec& spec, const Config& config, const Problem& problem);
[[nodiscard]] Plan simple_scan_plan(const Spec& spec, const Config& config, const Problem& problem);

}  // namespace packjit
