#pragma once

#include <span>
#include <vector>

#include "database/workload.hpp"
#include "generator/search_space.hpp"
#include "packing/random.hpp"

namespace packjit {

/// Whether the shape can tell the Config from a simpler one of the space: segments need a sequence longer than one, and
/// of the tiles that are as long as everything there is, one is enough.
[[nodiscard]] bool fits_shape(const Config& config, const Workload& work);

/// Configs that differ from `from` in one field, each value that is worth trying once, then `pairs` that differ in two,
/// in an order drawn from `random`. All can run and are worth trying; `from` itself need not be.
[[nodiscard]] std::vector<Config> neighbours(const Spec& spec, const Config& from, const DeviceLimits& limits,
                                             const Workload& work, int pairs, SplitMix64& random);

}  // namespace packjit
