#include "tuning/candidate_check.hpp"

#include <algorithm>

#include "checking/checks.hpp"
#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "runtime/errors.hpp"
#include "templates/device/sequence_map.cuh"

namespace packjit {
namespace {

/// The inputs that a backward reads beside its own: what the forward has stored.
HostTensors with_checkpoints(Device& device, const checking::Case& backward, const HostTensors& inputs) {
  checking::Case own = backward;
  own.checkpoints = false;
  return checking::run_with_stored_checkpoints(device, {own, inputs, {}}).inputs;
}

}  // namespace

CandidateCheck::CandidateCheck(Device& device, const Spec& spec) : device_(device), case_(checking::case_of(spec)) {
  // Two rows of equally many tokens. Channels: two blocks of 64 and some, or of what d_state leaves of them.
  constexpr std::int64_t kCut = 2 * SEGMENT_TOKENS + 77;
  case_.dim = is_scan(spec.op) && case_.d_state > 16 ? 36 : 140;
  case_.rows = {checking::row_of({kCut, 1, 64, 3}), checking::row_of({1, 2, 130, 17, -5, kCut - 87})};
  // What the candidate does not take is not among the inputs.
  checking::Case without_checkpoints = case_;
  without_checkpoints.checkpoints = false;
  inputs_ = checking::make_inputs(without_checkpoints);
  reference_ = checking::compute_reference(without_checkpoints, inputs_);
  if (is_backward(spec.op) && case_.checkpoints) inputs_ = with_checkpoints(device, case_, inputs_);
}

NumericalCheck CandidateCheck::operator()(const Config& candidate) const {
  const HostTensors outputs = checking::run_case(device_, case_, inputs_, candidate);
  const std::vector<checking::Result> results =
      checking::compare_with_reference(checking::CheckKind::oracle, case_, outputs, reference_);
  const auto share = [](const checking::Result& result) { return result.error / result.bound; };
  const auto worst = std::ranges::max_element(results, {}, share);
  if (!worst->pass()) throw CheckFailed(checking::describe(*worst));
  return {"each sequence alone in fp64, outputs poisoned, memory guarded", share(*worst)};
}

}  // namespace packjit
