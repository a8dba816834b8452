#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_shapes.hpp"
#include "cli/bench_tensors.hpp"
#include "cli/bench_variants.hpp"
#include "runtime/operator_call.hpp"

namespace packjit {

/// What calls are prepared for. Must not outlive the device.
struct CallSetting {
  Device& device;
  OperatorChoices choices;
  std::vector<std::string> settings;  ///< of bench_config()
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

[[nodiscard]] Sizes bench_sizes(const OperatorChoices& choices, const BenchShape& shape);
[[nodiscard]] Config config_for(const CallSetting& setting, const Spec& spec, const BenchShape& shape);

/// One call on all rows of a shape.
[[nodiscard]] PreparedCall whole_call(const CallSetting& setting, const Spec& spec, const BenchShape& shape,
                                      const BenchTensors& tensors);
/// A call for each sequence of the shape, on its part of the tensors.
[[nodiscard]] std::vector<PreparedCall> calls_of_sequences(const CallSetting& setting, const Spec& spec,
                                                           const BenchShape& shape, const BenchTensors& tensors);
/// One after the other, on one set of buffers. Does not wait.
void run_calls(Device& device, std::span<const PreparedCall> calls, std::size_t set, Buffer& workspace);

}  // namespace packjit
