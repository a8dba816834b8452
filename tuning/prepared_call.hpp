#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/operator_call.hpp"
#include "tuning/batch_shape.hpp"
#include "tuning/batch_tensors.hpp"
#include "tuning/limits.hpp"
#include "tuning/operator_choices.hpp"

namespace packjit {

/// What calls are prepared for. Must not outlive the device.
struct CallSetting {
  Device& device;
  OperatorChoices choices;
  std::vector<std::string> settings;  ///< of with_settings()
};

/// An operator call with everything made beforehand that needs the host.
struct PreparedCall {
  Spec spec;
  Config config;
  std::vector<TensorViews> tensors;  ///< one a set of buffers
  std::shared_ptr<const MappedSequences> sequences;
  Sizes sizes;
  std::int64_t computed_tokens;
};

[[nodiscard]] Sizes batch_sizes(const OperatorChoices& choices, const BatchShape& shape);
[[nodiscard]] Config config_for(const CallSetting& setting, const Spec& spec, const BatchShape& shape);

/// What a call of so many real tokens has to do at least.
[[nodiscard]] Work work_of(const Spec& spec, const Sizes& sizes, std::int64_t tokens);

/// One call on all rows of a shape.
[[nodiscard]] PreparedCall whole_call(const CallSetting& setting, const Spec& spec, const BatchShape& shape,
                                      const BatchTensors& tensors);
/// A call for each sequence of the shape, on its part of the tensors.
[[nodiscard]] std::vector<PreparedCall> calls_of_sequences(const CallSetting& setting, const Spec& spec,
                                                           const BatchShape& shape, const BatchTensors& tensors);
/// One after the other, on one set of buffers. Does not wait.
void run_calls(Device& device, std::span<const PreparedCall> calls, std::size_t set, Buffer& workspace);

}  // namespace packjit
