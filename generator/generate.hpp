#pragma once

#include <string>

#include "generator/operators.hpp"

namespace packjit {

/// The two lists of primitives that a template can be printed with.
enum class Target { cuda, host };

/// Generated source: a pure function of (Spec, Config, Target).
struct Source {
  std::string key;   ///< operator, every Spec field, every Config field; no path, no clock, no locale
  std::string text;  ///< self-contained CUDA C++ (or C++ for Target::host)
};

/// The key of the source that `generate` prints for the pair, without printing it.
[[nodiscard]] std::string source_key(const Spec& spec, const Config& config);

/// Prints the operator's template for one Spec and Config. Throws std::invalid_argument where check_pair does, and
/// std::logic_error where a template and its field tables disagree (a field that is not read, an unknown name).
[[nodiscard]] Source generate(const Spec& spec, const Config& config, Target target = Target::cuda);

}  // namespace packjit
