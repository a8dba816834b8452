#pragma once

#include <string>
#include <string_view>

#include "generator/operators.hpp"

namespace packjit {

/// C++ without comments, trailing blanks and empty lines: two sources that differ in those only become equal.
[[nodiscard]] std::string without_comments(std::string_view source);

/// Digest of the CUDA source that the pair prints, without comments, as 32 hexadecimal digits. What was measured or
/// found wrong holds as long as it stays the same. Throws std::invalid_argument where `generate` does.
[[nodiscard]] std::string source_digest(const Spec& spec, const Config& config);

}  // namespace packjit
