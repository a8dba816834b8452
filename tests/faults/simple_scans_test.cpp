// The scans with complex A, or with B or C that are constant, on what the cases of `packjit verify` are too small for.
#include <memory>

#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

/// Sequences so long that sums over time are folded within them, and many of them a block.
Case long_sequences(Operator op) {
  Case c;
  c.name = "long sequences";
  c.op = op;
  c.dim = 3;
  c.d_state = 3;
  c.complex_A = c.constant_B = c.constant_C = true;
  c.initial_states = c.final_states = true;
  c.rows = {row_of({700, 5, -3, 61}), row_of({-1, 1, 600, 167})};
  return c;
}

/// More channels than a block takes at once, several steps between checkpoints, and rows that begin in between.
Case many_states(Operator op) {
  Case c;
  c.name = "many states";
  c.op = op;
  c.dim = 7;
  c.d_state = 70;
  c.complex_A = true;
  c.rows = {row_of({71, 3, -3}), row_of({-1, 1, 45, 30})};
  return c;
}

TEST_P(KnownFaults, simple_scans_give_the_values_of_the_oracle) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    for (const Case& c : {long_sequences(op), many_states(op)}) {
      const CaseRun run = first_run(device(), c);
      expect_pass(check_against_oracle(run, compute_reference(c, run.inputs)));
      expect_pass(check_repeat(device(), run));
    }
  }
}

TEST(SimpleScanOrder, ChangesNoBit) {
  const std::unique_ptr<Device> forward = open_host_device();
  const std::unique_ptr<Device> reverse = open_host_device({HostOrder::Kind::reverse, 0});
  const std::unique_ptr<Device> seeded = open_host_device({HostOrder::Kind::seeded, 1});
  Device* const others[] = {reverse.get(), seeded.get()};
  const CaseRun run = first_run(*forward, many_states(Operator::ssm_pack_bwd));
  expect_pass(check_thread_orders(others, run));
}

}  // namespace
}  // namespace packjit::checking
