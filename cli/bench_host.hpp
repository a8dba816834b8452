#pragma once

#include <CLI/CLI.hpp>

namespace packjit {

/// Adds `bench host`: what the library costs the host, from a cold compile to a warm call.
void add_bench_host(CLI::App& bench);

}  // namespace packjit
