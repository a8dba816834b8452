#pragma once

#include <optional>

#include "checking/case.hpp"
#include "checking/reference.hpp"
#include "database/entry.hpp"
#include "runtime/device.hpp"

namespace packjit {

/// Compares candidates of one Spec with the oracle, on inputs small enough for it: sequences of one token and of
/// several segments, channels and tokens that fill no block or tile. Inputs and reference are made once. Must not
/// outlive the device.
class CandidateCheck {
 public:
  CandidateCheck(Device& device, const Spec& spec);

  /// Runs the candidate on poisoned outputs between guard zones. Throws CheckFailed that says which tensor misses its
  /// bound by how much, or which guard zone was written; whatever the device throws where the kernel faults.
  [[nodiscard]] NumericalCheck operator()(const Config& candidate) const;

 private:
  Device& device_;
  checking::Case case_;
  HostTensors inputs_;
  checking::Reference reference_;
};

}  // namespace packjit
