#pragma once

#include <string>
#include <string_view>

#include "generator/generate.hpp"

namespace packjit {

/// What a source was generated for, as its "// Key:" line says.
struct SourceOrigin {
  Spec spec;
  Config config;
};

/// Reads the "// Key:" line of generated source, edited or not. Throws std::invalid_argument for text without one and
/// for a key that this version does not print (an unknown operator or field, a field that is missing); the message ends
/// with the packjit generate line that makes a source for `spec` and `config`, `target` being where it is to run.
[[nodiscard]] SourceOrigin origin_of(std::string_view text, const Spec& spec, const Config& config, Target target);

/// Throws std::invalid_argument where the text is of the other target: CUDA source for host execution or the reverse.
/// The message ends with the packjit generate line for `origin`.
void require_target(std::string_view text, const SourceOrigin& origin, Target target);

/// Throws std::invalid_argument naming the operator or the fields that differ, found and needed, where a source cannot
/// serve a call: its Spec must be the call's, and its accesses (Config field `vector`) no wider than `call_vector`.
void require_fitting(const SourceOrigin& origin, const Spec& call, int call_vector, Target target);

/// "packjit generate ssm_pack_fwd --d-state 32 --set vector=1 --target host -o kernel.cu": what differs from defaults.
[[nodiscard]] std::string generate_line(const Spec& spec, const Config& config, Target target);

}  // namespace packjit
