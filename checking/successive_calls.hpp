#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checking/checks.hpp"
#include "checking/rearrange.hpp"
#include "packing/boundaries.hpp"

/// Sequences that are cut in pieces, which run in successive calls and hand their states over: forward, and backward
/// through all calls, where the gradient of a piece's initial states is that of the final states of the piece before.
namespace packjit::checking {

/// The calls in which a case's sequences run, and which slot of which call takes its states from where.
struct SuccessiveCalls {
  std::vector<Part> parts;
  std::vector<StateHandover> handovers;
};

/// The calls of a plan whose document d is the case's sequence d; rows as training has them, padding at their ends.
[[nodiscard]] SuccessiveCalls calls_of(const Case& whole, const PackPlan& plan);
/// Two calls: every sequence of two tokens or more is cut where the seed says. One where no sequence is as long.
[[nodiscard]] SuccessiveCalls cut_in_two(const Case& whole);

/// Outputs of the calls in the places of the whole case.
[[nodiscard]] HostTensors run_in_calls(Device& device, const Case& whole, const HostTensors& inputs,
                                       const SuccessiveCalls& calls, const std::optional<Config>& config = {});

/// The reference is that of the uncut case.
[[nodiscard]] std::vector<Result> check_cut(Device& device, const CaseRun& run, const Reference& reference);
/// The same in the calls of a plan, with the built-in Config and with one for little work, in segments.
[[nodiscard]] std::vector<Result> check_successive_calls(Device& device, const CaseRun& run, const Reference& reference,
                                                         const SuccessiveCalls& calls);

/// Which pieces have the bits of the uncut run under the same Config, of one tensor of tokens and one of the Configs.
struct PieceBits {
  Operator op = Operator::ssm_pack_fwd;
  Dtype dtype = Dtype::fp32;
  std::string tensor;
  std::string config;  ///< "built-in", "little work", "segments"
  std::int64_t pieces = 0, equal = 0;
  std::int64_t must_be_equal = 0;  ///< so many of them, see piece_bits()
  std::int64_t wrong = 0;          ///< of those that must be, the ones that are not
};
/// A scan walks the tokens of a sequence in order, one after the other, whatever the tiles; what it hands over is what
/// it would go on with, in fp32. So all pieces must have the same bits. Where a Config runs segments side by side, the
/// state at a segment's beginning comes from a product over whole segments, which a call that ends there does not
/// make: the first piece of a document must have the same bits forward, and documents that are whole in both
/// directions. Of the convolution's outputs each is one sum of inputs, so all pieces must; of its dx all tokens but the
/// W-1 before a cut, into which the next piece's share comes as one sum that was rounded.
[[nodiscard]] std::vector<PieceBits> piece_bits(Device& device, const CaseRun& run, const SuccessiveCalls& calls);
/// Results of the check `cut bits` for a report.
[[nodiscard]] std::vector<Result> results_of(const CaseRun& run, const std::vector<PieceBits>& bits);

}  // namespace packjit::checking
