// Long sequences in segments of 1024 tokens that run side by side.
#include <memory>

#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

Case in_segments(Operator op, Dtype dtype) {
  Case c;
  c.name = "segments";
  c.op = op;
  c.dtype = dtype;
  c.dim = 3;
  c.d_state = 4;
  c.initial_states = c.final_states = true;
  // One token more than a segment, two segments and some, exactly three, beside short ones and padding.
  c.rows = {row_of({1025, 5, 2300, -2}), row_of({-1, 3072, 1, 258})};
  c.config = {{"segments", "on"}};
  return c;
}

/// More lanes than tokens that they share at a time, and more channels than a block takes at once. The last segments
/// have an odd number of tiles, so that those of the next channels begin where they have ended.
Case with_many_lanes(Operator op, Dtype dtype) {
  Case c = in_segments(op, dtype);
  c.rows = {row_of({1025, 5, 2120})};
  c.config.insert(c.config.end(), {{"block", "64"}, {"lanes", "32"}, {"vector", "1"}});
  if (op == Operator::ssm_pack_bwd) {
    c.config.insert(c.config.end(), {{"tile_tokens", "8"}, {"channel_sums", "registers"}});
  }
  return c;
}

TEST_P(KnownFaults, segments_of_long_sequences_give_the_values_of_the_oracle) {
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      for (const Case& c : {in_segments(op, dtype), with_many_lanes(op, dtype)}) {
        const CaseRun run = first_run(device(), c);
        const Reference reference = compute_reference(c, run.inputs);
        expect_pass(check_against_oracle(run, reference));
        if (op == Operator::ssm_pack_bwd) {
          expect_pass(check_against_oracle(run_with_stored_checkpoints(device(), run), reference));
        }
      }
    }
  }
}

TEST(SegmentOrder, ChangesNoBit) {
  const std::unique_ptr<Device> forward = open_host_device();
  const std::unique_ptr<Device> reverse = open_host_device({HostOrder::Kind::reverse, 0});
  const std::unique_ptr<Device> seeded = open_host_device({HostOrder::Kind::seeded, 1});
  Device* const others[] = {reverse.get(), seeded.get()};
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    for (const Case& c : {in_segments(op, Dtype::bf16), with_many_lanes(op, Dtype::bf16)}) {
      const CaseRun run = first_run(*forward, c);
      expect_pass(check_thread_orders(others, run));
      if (op == Operator::ssm_pack_bwd) {
        expect_pass(check_thread_orders(others, run_with_stored_checkpoints(*forward, run)));
      }
    }
  }
}

}  // namespace
}  // namespace packjit::checking
