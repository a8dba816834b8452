#pragma once

#include <string>
#include <string_view>

#include "packing/training_stream.hpp"

namespace packjit {

/// {"epoch": 2, "step": 17, "fingerprint": "1234567890123456789"}: the fingerprint as text, since numbers of JSON are
/// doubles to many readers.
[[nodiscard]] std::string position_json(const StreamPosition& position);
/// Throws std::invalid_argument that says what was expected and what was found.
[[nodiscard]] StreamPosition parse_position(std::string_view text);

}  // namespace packjit
