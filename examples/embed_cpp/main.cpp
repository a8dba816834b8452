// Two sequences packed into one row, through a causal convolution that does not let the first reach into the second.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "runtime/device.hpp"
#include "runtime/operator_call.hpp"
#include "runtime/sequence_map.hpp"

int main(int argc, char** argv) try {
  // "auto": a GPU where there is one, otherwise host execution, which checks kernels on the CPU and is not fast.
  const auto device = packjit::open_device(argc > 1 ? argv[1] : "auto");

  // One row of 8 tokens, 1 channel. Sequences of 5 and 3 tokens: positions restart at 0 where one begins.
  packjit::HostTensors inputs;
  inputs["x"] = packjit::HostTensor::from_double(packjit::ElementType::fp32, {1, 8, 1}, {1, 2, 3, 4, 5, 10, 20, 30});
  // Four taps, the last one meets the current token: each output is the sum of up to four tokens of its own sequence.
  inputs["weight"] = packjit::HostTensor::from_double(packjit::ElementType::fp32, {1, 4}, {1, 1, 1, 1});
  const packjit::Boundaries boundaries{packjit::Boundaries::Form::position_indices, {0, 1, 2, 3, 4, 0, 1, 2}};
  const packjit::SequenceMap map = packjit::build_sequence_map(boundaries, 1, 8);

  packjit::HostCall call{
      packjit::Spec(packjit::Operator::conv1d_pack_fwd), {}, packjit::Layout::token_major, false, {}};
  call.spec.values.set_text("activation", "none");  // the default is SiLU
  const packjit::HostTensors outputs = packjit::run_on_host_tensors(*device, call, inputs, map);

  for (const double value : outputs.at("out").to_double()) fmt::print("{} ", value);
  fmt::print("\n");  // 1 3 6 10 14 10 30 60
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
