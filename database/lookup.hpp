#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "database/database.hpp"

namespace packjit {

/// Where a Config comes from, in the order in which the places are asked.
enum class Outcome {
  exact,              ///< tuned on this GPU model for this bucket
  nearest_shape,      ///< tuned on this GPU model for a bucket near to it
  same_architecture,  ///< tuned on another GPU of the architecture, for this bucket or one near to it
  built_in,           ///< nothing was tuned that fits
};
[[nodiscard]] std::string_view name_of(Outcome outcome);  ///< "nearest shape"

/// Something that was asked before and gave nothing.
struct RejectedStep {
  Outcome outcome;
  std::string origin;  ///< the entry; empty where there was none
  std::string reason;
};

struct Choice {
  Config config;
  Outcome outcome = Outcome::built_in;
  std::string origin;                  ///< which entry of which database, or which built-in Config
  std::vector<RejectedStep> rejected;  ///< in the order in which they were asked
};

/// Why the Config cannot run on the GPU: a constraint of the pair, instructions that the architecture lacks, more
/// shared memory than a block can have there. Empty where it can. A limit of 0 is one that is not known.
[[nodiscard]] std::string why_not(const Spec& spec, const Config& config, const GpuProperties& gpu);

/// The Config for a call, which depends on the call's bucket only, its dim and how a scan's sequences are cut apart; so
/// a new mix of lengths finds what is there. `databases`: the user's before those that were shipped. Each candidate is
/// checked by why_not(); one that does not fit is passed over and reported. Pure; takes the time of a walk through the
/// entries.
[[nodiscard]] Choice look_up(std::span<const Database* const> databases, const Spec& spec, const GpuProperties& gpu,
                             const Workload& work);

/// The last step of look_up() alone.
[[nodiscard]] Choice built_in_choice(const Spec& spec, const GpuProperties& gpu, const Workload& work);

}  // namespace packjit
