#pragma once

#include <span>
#include <string>

#include "tuning/tuner.hpp"

namespace packjit {

/// A Markdown table of entries, one a line: what was gained over the built-in Config, how far the times spread, how
/// near to the GPU's limits they are. `failed` are candidates on record, counted for their Spec and measured shape.
[[nodiscard]] std::string tuning_table(std::span<const Entry> entries, std::span<const FailedCandidate> failed);

/// An SVG picture of one target: the times of all candidates, sorted, over that of the built-in Config; the built-in
/// Config and the winner are marked. Throws std::invalid_argument where no candidate was measured.
[[nodiscard]] std::string tuning_picture(const TuningTarget& target, const TuningResult& result);

}  // namespace packjit
