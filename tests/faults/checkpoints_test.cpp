// States inside sequences (checkpoints), which the forward scan stores for the backward, or the backward computes
// again.
#include <stdexcept>

#include "generator/ssm_pack.hpp"
#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

/// Sequences around the interval between checkpoints, begun anywhere, and one much longer, with padding.
Case around_interval(std::int64_t interval) {
  Case c;
  c.name = "around an interval of " + std::to_string(interval);
  c.op = Operator::ssm_pack_bwd;
  c.dim = 6;
  c.initial_states = c.final_states = true;
  const std::int64_t edges = 3 + (interval - 1) + interval + (interval + 1) + (2 * interval + 1);
  c.rows = {row_of({3, interval - 1, interval, interval + 1, 2 * interval + 1}), row_of({-2, edges - 3, -1}),
            row_of({1, 1, edges - 2})};
  return c;
}

TEST_P(KnownFaults, checkpoints_stored_by_the_forward_give_the_gradients_of_the_oracle) {
  // 5 and 136: states that fill neither their lanes nor an access of 16 bytes.
  for (const auto& [d_state, interval] : {std::pair{5, 8}, {16, 8}, {24, 16}, {136, 32}, {260, 64}}) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      Case c = around_interval(interval);
      c.dtype = dtype;
      c.d_state = d_state;
      c.groups = d_state == 16 ? 2 : 1;
      const CaseRun run = first_run(device(), c);
      const Reference reference = compute_reference(c, run.inputs);
      expect_pass(check_against_oracle(run, reference));
      expect_pass(check_against_oracle(run_with_stored_checkpoints(device(), run), reference));
    }
  }
}

TEST_P(KnownFaults, checkpoints_may_lie_several_tiles_apart_or_several_in_a_tile) {
  Case c = around_interval(8);
  for (const char* tile : {"4", "8", "16", "32"}) {
    c.config = {{"block", "32"}, {"tile_tokens", tile}, {"step_tokens", "4"}};
    const CaseRun run = first_run(device(), c);
    const Reference reference = compute_reference(c, run.inputs);
    expect_pass(check_against_oracle(run, reference));
    expect_pass(check_against_oracle(run_with_stored_checkpoints(device(), run), reference));
  }
  for (const char* interval : {"8", "16", "64"}) {  // the backward's own may be anywhere
    c.config = {{"tile_tokens", "16"}, {"checkpoint_tokens", interval}, {"step_tokens", "2"}};
    expect_oracle(c);
  }
}

TEST_P(KnownFaults, checkpoints_change_no_bit_of_the_forward) {
  for (const int d_state : {16, 136}) {
    Case c = around_interval(16);
    c.op = Operator::ssm_pack_fwd;
    c.d_state = d_state;
    const CaseRun run = first_run(device(), c);
    c.checkpoints = true;
    HostTensors outputs = run_case(device(), c, run.inputs);
    ASSERT_EQ(outputs.erase("checkpoints"), 1u);
    expect_pass(compare_bits(CheckKind::repeat, run.check_case, run.outputs, outputs));
  }
}

/// The backward takes the states that it is given: what a checkpoint holds shows in dC, the gradient of y over the
/// state.
TEST_P(KnownFaults, checkpoints_are_read_and_not_computed_again) {
  Case c = small(Operator::ssm_pack_bwd, {{40}});
  c.dim = c.d_state = 1;
  c.softplus = c.D = c.z = c.delta_bias = false;
  c.checkpoints = true;
  HostTensors inputs;
  for (const char* name : {"u", "delta", "dout"}) inputs[name] = fp32_tensor({1, 40, 1}, repeated(1, 40));
  for (const char* name : {"B", "C"}) inputs[name] = fp32_tensor({1, 40, 1, 1}, repeated(1, 40));
  inputs["A"] = fp32_tensor({1, 1}, {0});
  inputs["checkpoints"] = fp32_tensor({6, 1, 1}, {100, 1000, 2000, 3000, 4000, 0});  // before tokens 8, 16...
  const std::vector<double> dC = run_case(device(), c, inputs).at("dC").to_double();
  EXPECT_EQ(dC[0], 1);
  EXPECT_EQ(dC[6], 7);
  EXPECT_EQ(dC[7], 100);  // the state after token 7 is the one before token 8
  EXPECT_EQ(dC[8], 101);
  EXPECT_EQ(dC[14], 107);
  EXPECT_EQ(dC[15], 1000);
  EXPECT_EQ(dC[16], 1001);
  EXPECT_EQ(dC[39], 3008);
}

TEST_P(KnownFaults, checkpoints_off_a_multiple_of_16_bytes_are_refused) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    Case c = small(op, {{40}});
    c.checkpoints = true;
    HostTensors inputs = make_inputs(c);
    inputs["checkpoints"] = fp32_tensor({6, c.dim, c.d_state}, repeated(0, 6 * c.dim * c.d_state));
    StridedCall call(device(), c);
    (void)call.run(inputs);
    call.place("checkpoints", {}, 1);
    try {
      (void)call.run(inputs);
      ADD_FAILURE() << name_of(op) << ": nothing was thrown";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()),
                std::string(name_of(op)) +
                    ": tensor checkpoints begins 4 bytes past a multiple of 16; give it memory of its own");
    }
  }
}

}  // namespace
}  // namespace packjit::checking
