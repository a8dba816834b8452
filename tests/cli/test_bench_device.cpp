#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/nvrtc.hpp"
#include "tuning/measure.hpp"
#include "tuning/prepared_call.hpp"

// What `bench ops` launches, as far as that can be seen without a GPU.
namespace packjit {
namespace {

TEST(BenchKernels, CompileForTheOldestAndTheNewestArchitecture) {
  const auto nvrtc = Nvrtc::shared();
  for (const std::string& arch : {nvrtc->archs().front(), nvrtc->archs().back()}) {
    const CompileResult images = compile(*nvrtc, measuring_source(), arch);
    EXPECT_TRUE(images.ok) << describe_failure(images);
    for (const char* entry : {".entry copy(", ".entry wait_and_count_clocks("}) {
      EXPECT_NE(images.ptx.find(entry), std::string::npos) << arch << entry;
    }
  }
}

std::vector<std::byte> contents(Device& device, const TensorView& view) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count_of(view.size)) * size_of(view.type));
  device.read(bytes.data(), view.data, bytes.size());
  return bytes;
}

constexpr std::int64_t kDim = 8;
const BatchShape kShape{"lengths", 10, {{5, 3}, {4, 6}}};

/// One by one and packed, on the same inputs: every token's results must be the same bits.
void expect_same_in_both_ways(Operator op, const std::vector<std::string>& token_outputs) {
  const auto device = open_host_device();
  OperatorChoices choices;
  choices.dim = kDim;
  const CallSetting setting{*device, choices, {}};
  const Spec spec = spec_for(op, choices);
  const BatchTensors tensors(*device, {&spec, 1}, batch_sizes(choices, kShape), 2, 7);
  Buffer workspace;
  // The two sets hold the same inputs: one for each way.
  const PreparedCall whole = whole_call(setting, spec, kShape, tensors);
  run_calls(*device, {&whole, 1}, 0, workspace);
  const std::vector<PreparedCall> alone = calls_of_sequences(setting, spec, kShape, tensors);
  ASSERT_EQ(alone.size(), 4U);
  // Padding belongs to no sequence, so one by one leaves there what was there; packed writes zeros.
  for (const std::string& name : token_outputs) {
    const TensorView view = tensors.views(spec, 1).at(name);
    device->fill(view.data, 0, static_cast<std::size_t>(count_of(view.size)) * size_of(view.type));
  }
  run_calls(*device, alone, 1, workspace);
  device->check_guards();
  for (const std::string& name : token_outputs) {
    EXPECT_TRUE(contents(*device, tensors.views(spec, 0).at(name)) ==
                contents(*device, tensors.views(spec, 1).at(name)))
        << name;
  }
  const auto zero = [](std::byte byte) { return byte == std::byte{0}; };
  const std::vector<std::byte> first = contents(*device, tensors.views(spec, 0).at(token_outputs.front()));
  EXPECT_FALSE(std::all_of(first.begin(), first.end(), zero));
}

TEST(BenchCalls, ConvolutionForward) { expect_same_in_both_ways(Operator::conv1d_pack_fwd, {"out"}); }
TEST(BenchCalls, ConvolutionBackward) { expect_same_in_both_ways(Operator::conv1d_pack_bwd, {"dx"}); }
TEST(BenchCalls, ScanForward) { expect_same_in_both_ways(Operator::ssm_pack_fwd, {"out"}); }
TEST(BenchCalls, ScanBackward) { expect_same_in_both_ways(Operator::ssm_pack_bwd, {"du", "ddelta", "dB", "dC", "dz"}); }

TEST(BatchTensorsTest, OperatorsTogetherShareTensorsOfOneName) {
  const auto device = open_host_device();
  OperatorChoices choices;
  choices.dim = kDim;
  const Spec specs[] = {spec_for(Operator::ssm_pack_fwd, choices), spec_for(Operator::ssm_pack_bwd, choices)};
  const BatchTensors tensors(*device, specs, batch_sizes(choices, kShape), 1, 7);
  const TensorViews forward = tensors.views(specs[0], 0), backward = tensors.views(specs[1], 0);
  EXPECT_EQ(forward.at("u").data, backward.at("u").data);
  EXPECT_TRUE(forward.contains("out"));
  EXPECT_FALSE(forward.contains("dout"));
  EXPECT_FALSE(backward.contains("out"));
  EXPECT_TRUE(backward.contains("du"));
}

}  // namespace
}  // namespace packjit
