// Both operators through the C interface on host execution, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "api/tensors.hpp"
#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "checking/reference.hpp"
#include "tests/api/calls.hpp"

namespace packjit::testing {
namespace {

using checking::Case;

/// One device, one operator and the tensors of one case, by name.
class Runner {
 public:
  explicit Runner(const Case& check_case)
      : case_(check_case), device_(open_host()), op_(make_operator(device_, options_of(check_case))) {
    shape_ = {sizeof(shape_),
              c().batch(),
              c().seqlen(),
              c().dim,
              c().groups,
              static_cast<std::int64_t>(checking::sequences_of(c()).size()),
              c().seqlen(),
              c().layout == Layout::channel_major ? PACKJIT_CHANNEL_MAJOR : PACKJIT_TOKEN_MAJOR,
              0};
  }

  void make_map(bool on_device) {
    const Boundaries boundaries = *checking::boundaries_of(c(), Boundaries::Form::position_indices);
    positions_.assign(boundaries.values.begin(), boundaries.values.end());
    const packjit_tensor values = tensor(positions_.data(), PACKJIT_INT32, {c().batch(), c().seqlen()});
    const std::int64_t limit = on_device ? 1 : 0;
    const packjit_map_options options{
        sizeof(options), PACKJIT_POSITION_INDICES,     static_cast<std::int32_t>(c().map), c().batch(),
        c().seqlen(),    limit * shape_.max_sequences, limit * shape_.max_seqlen};
    packjit_map* map = nullptr;
    if (on_device) {
      ASSERT_DONE(packjit_map_create(device_.get(), nullptr, &options, PACKJIT_INT32, &map));
      map_.reset(map);
      ASSERT_DONE(packjit_map_build(map, nullptr, &values));
      ASSERT_DONE(packjit_map_check(map, nullptr));
    } else {
      ASSERT_DONE(packjit_map_from_host(device_.get(), nullptr, &options, &values, &map));
      map_.reset(map);
    }
  }

  /// `inputs` are token-major.
  void give(const HostTensors& inputs) {
    for (const auto& [name, given] : inputs) {
      HostTensor placed = swapped(name) ? checking::swap_token_and_channel(given) : given;
      packjit_tensor view{sizeof(view), nullptr, c_dtype(given.type), static_cast<std::int32_t>(given.shape.size()),
                          {},           {}};
      std::int64_t next = 1;
      for (std::size_t i = given.shape.size(); i-- > 0;) {
        view.shape[i] = placed.shape[i];
        view.stride[i] = next;
        next *= placed.shape[i];
      }
      if (swapped(name)) {
        std::swap(view.shape[1], view.shape[2]);
        std::swap(view.stride[1], view.stride[2]);
      }
      keep(name, std::move(placed), view);
    }
  }

  HostTensors run(Operator op) {
    const std::int32_t direction = is_backward(op) ? PACKJIT_BACKWARD : PACKJIT_FORWARD;
    for (const TensorRule& rule : tensor_rules(op)) {
      if (!rule.output) continue;
      packjit_tensor view{sizeof(view), nullptr, 0, 0, {}, {}};
      const std::string name(rule.name);
      if (packjit_operator_describe(op_.get(), direction, &shape_, name.c_str(), &view) != PACKJIT_OK) continue;
      HostTensor memory = HostTensor::zeros(api::element_type(view.dtype, name), {view.shape, view.shape + view.rank});
      std::ranges::fill(memory.bytes, std::byte{0xFF});
      keep(name, std::move(memory), view);
    }
    std::size_t bytes = 0;
    EXPECT_DONE(packjit_operator_workspace_bytes(op_.get(), direction, &shape_, &bytes));
    std::vector<std::byte> scratch(bytes + 256, std::byte{0xFF});
    void* start = scratch.data();
    std::size_t space = scratch.size();
    const packjit_workspace workspace{sizeof(workspace), std::align(256, bytes, start, space), bytes};
    EXPECT_DONE(call_operator(
        op, op_.get(), nullptr, map_.get(), [&](const char* tensor_name) { return get(tensor_name); }, &workspace));
    HostTensors outputs;
    for (const TensorRule& rule : tensor_rules(op)) {
      const auto found = memory_.find(rule.name);
      if (!rule.output || found == memory_.end()) continue;
      HostTensor output = found->second;
      if (swapped(rule.name)) {
        std::swap(output.shape[1], output.shape[2]);
        output = checking::swap_token_and_channel(output);
      }
      outputs.emplace(rule.name, output);
    }
    return outputs;
  }

 private:
  [[nodiscard]] const Case& c() const { return case_; }
  [[nodiscard]] bool swapped(std::string_view name) const {
    return c().layout == Layout::channel_major && checking::is_activation(name);
  }
  void keep(const std::string& name, HostTensor memory, packjit_tensor view) {
    HostTensor& kept = memory_[name] = std::move(memory);
    view.data = kept.bytes.data();
    views_[name] = view;
  }
  [[nodiscard]] const packjit_tensor* get(const char* name) const {
    const auto found = views_.find(name);
    return found == views_.end() ? nullptr : &found->second;
  }
  Case case_;
  DeviceHandle device_;
  OperatorHandle op_;
  MapHandle map_;
  packjit_shape shape_{};
  std::vector<std::int32_t> positions_;
  std::map<std::string, HostTensor, std::less<>> memory_;
  std::map<std::string, packjit_tensor, std::less<>> views_;
};

void expect_within_bounds(const Case& check_case, const HostTensors& inputs, const HostTensors& outputs,
                          std::size_t tensors) {
  EXPECT_EQ(outputs.size(), tensors);
  const auto reference = checking::compute_reference(check_case, inputs);
  for (const auto& result :
       checking::compare_with_reference(checking::CheckKind::oracle, check_case, outputs, reference)) {
    EXPECT_TRUE(result.pass()) << checking::describe(result);
  }
}

/// Sequences of two rows, with padding at the end of the first, and states in and out.
Case with_states(Operator op) {
  Case c;
  c.name = "two rows";
  c.op = op;
  c.dim = 8;
  c.d_state = 4;
  c.initial_states = c.final_states = true;
  c.rows = {checking::row_of({5, 2, 6, -3}), checking::row_of({16})};
  return c;
}

TEST(Oracle, ConvolutionForward) {
  const Case c = with_states(Operator::conv1d_pack_fwd);
  Runner runner(c);
  runner.make_map(false);
  const HostTensors inputs = checking::make_inputs(c);
  runner.give(inputs);
  expect_within_bounds(c, inputs, runner.run(c.op), 2);
}

TEST(Oracle, ConvolutionBackwardChannelMajorWithAMapOfTheDevice) {
  Case c = with_states(Operator::conv1d_pack_bwd);
  c.layout = Layout::channel_major;
  c.map = MapStorage::bits;
  Runner runner(c);
  runner.make_map(true);
  const HostTensors inputs = checking::make_inputs(c);
  runner.give(inputs);
  expect_within_bounds(c, inputs, runner.run(c.op), 4);
}

TEST(Oracle, ConvolutionWithFp32WeightsBesideHalfActivations) {
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    Case c = with_states(op);
    c.dtype = Dtype::bf16;
    c.fp32_weights = true;
    Runner runner(c);
    runner.make_map(true);
    const HostTensors inputs = checking::make_inputs(c);
    EXPECT_EQ(inputs.at("weight").type, ElementType::fp32);
    runner.give(inputs);
    expect_within_bounds(c, inputs, runner.run(c.op), is_backward(op) ? 4 : 2);
  }
}

TEST(Oracle, ScanForwardWithGroups) {
  Case c = with_states(Operator::ssm_pack_fwd);
  c.groups = 2;
  Runner runner(c);
  runner.make_map(true);
  const HostTensors inputs = checking::make_inputs(c);
  runner.give(inputs);
  expect_within_bounds(c, inputs, runner.run(c.op), 2);
}

TEST(Oracle, ScanBackwardWithCheckpointsOfTheForward) {
  Case c = with_states(Operator::ssm_pack_bwd);
  c.dtype = Dtype::bf16;
  c.checkpoints = true;
  c.rows = {checking::row_of({5, 35}), checking::row_of({40})};  // longer than the 16 tokens between two checkpoints
  Runner runner(c);
  runner.make_map(false);
  const HostTensors inputs = checking::make_inputs(c);
  runner.give(inputs);
  EXPECT_EQ(runner.run(Operator::ssm_pack_fwd).size(), 3U);
  expect_within_bounds(c, inputs, runner.run(c.op), 9);
}

TEST(Oracle, ScanWithComplexAConstantBAndGroupsOfC) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    Case c = with_states(op);
    c.dtype = Dtype::bf16;
    c.groups = 2;
    c.complex_A = c.constant_B = true;
    Runner runner(c);
    runner.make_map(true);
    const HostTensors inputs = checking::make_inputs(c);
    runner.give(inputs);
    const HostTensors outputs = runner.run(op);
    expect_within_bounds(c, inputs, outputs, is_backward(op) ? 9 : 2);
    if (!is_backward(op)) continue;
    EXPECT_EQ(outputs.at("dB").type, ElementType::complex64);
    EXPECT_EQ(outputs.at("dB").shape, (std::vector<std::int64_t>{8, 4}));
    EXPECT_EQ(outputs.at("dC").type, ElementType::bf16);
    EXPECT_EQ(outputs.at("dC").shape, (std::vector<std::int64_t>{2, 16, 2, 8}));
    EXPECT_EQ(outputs.at("dD").type, ElementType::fp32);
  }
}

}  // namespace
}  // namespace packjit::testing
