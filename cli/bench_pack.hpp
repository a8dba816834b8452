#pragma once

#include <CLI/CLI.hpp>

namespace packjit {

/// Adds `bench pack`: how long the packing methods take, by number of documents. On the CPU, one thread.
void add_bench_pack(CLI::App& bench);

}  // namespace packjit
