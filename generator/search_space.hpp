#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"

namespace packjit {

/// What of a GPU decides which Configs it can run.
struct DeviceLimits {
  std::string arch;                         ///< "sm_90"
  std::int64_t shared_bytes_per_block = 0;  ///< the largest dynamic shared memory a block can ask for
};

/// The values of a Config field that are worth trying. Where there is one only, it is not a choice: nothing is faster.
struct FieldChoices {
  std::string_view field;
  std::vector<int> values;
};

/// One for each field of the operator's Config, in the order of its table; what `arch` lacks instructions for is left
/// out. Declared beside each operator's fields (generator/ssm_pack.cpp, generator/conv1d_pack.cpp).
[[nodiscard]] std::vector<FieldChoices> field_choices(const Spec& spec, const std::string& arch);

/// Why the Config cannot run: the pair or the architecture refuses it, or a launch of it asks for more shared memory
/// than a block has. Nothing where it can.
[[nodiscard]] std::optional<std::string> refusal(const Spec& spec, const Config& config, const DeviceLimits& limits);

/// Whether the values go together well enough for the Config to be worth a trial: no idle lanes, registers for the
/// blocks asked for, nothing that another Config of the space says too.
[[nodiscard]] bool worth_trying(const Spec& spec, const Config& config);

/// All Configs of these choices that are worth trying and can run, in a fixed order: that of the tables, the last field
/// changing first. No two of them print the same code.
[[nodiscard]] std::vector<Config> search_space(const Spec& spec, const DeviceLimits& limits);

}  // namespace packjit
