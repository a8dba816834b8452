#pragma once

#include <cstdint>
#include <string_view>

#include "generator/operators.hpp"

namespace packjit {

/// What a measured stretch of work has to do at least.
struct Work {
  double bytes = 0;         ///< of all inputs and outputs, each moved once
  double exponentials = 0;  ///< and reciprocals: what the special-function units compute
  double instructions = 0;  ///< of one thread, so a warp's instruction counts as 32
  Work& operator+=(const Work& other);
};

/// How fast the device does it.
struct Rates {
  double bytes_per_second = 0;  ///< read and written by a copy
  double clock_mhz = 0;         ///< of the multiprocessors
  int multiprocessors = 0;
};

/// The shortest times that the rates allow, in milliseconds.
struct Limits {
  double memory_ms = 0, exponential_ms = 0, issue_ms = 0;
  [[nodiscard]] double largest_ms() const;
  [[nodiscard]] std::string_view largest() const;  ///< "memory", "exponentials" or "issue"
};
[[nodiscard]] Limits limits_of(const Work& work, const Rates& rates);

/// Per element (token x channel); the formulas stand in docs/bench_ops.md. They count what the algorithm needs at
/// least, not what a kernel executes.
[[nodiscard]] double exponentials_per_element(const Spec& spec);
[[nodiscard]] double instructions_per_element(const Spec& spec);
/// Whether a backward Spec computes the states in a pass of their own before the gradients.
[[nodiscard]] bool recomputes_states(const Spec& spec);

}  // namespace packjit
