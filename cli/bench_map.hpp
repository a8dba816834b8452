#pragma once

#include <CLI/CLI.hpp>

namespace packjit {

/// Adds `bench map`: what it takes to build a SequenceMap on a GPU from each form and type of boundaries, and what the
/// convolution takes with each storage of the map.
void add_bench_map(CLI::App& bench);

}  // namespace packjit
