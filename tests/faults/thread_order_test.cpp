// A missing barrier shows as a result that depends on the order in which host execution runs the threads.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "checking/matrix.hpp"
#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

class ThreadOrder : public testing::TestWithParam<Operator> {};

TEST_P(ThreadOrder, ChangesNoBit) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_host_device({HostOrder::Kind::reverse, 0}));
  for (const std::uint64_t seed : {1, 2, 3}) devices.push_back(open_host_device({HostOrder::Kind::seeded, seed}));
  std::vector<Device*> others;
  for (const auto& device : devices) others.push_back(device.get());
  const std::unique_ptr<Device> forward = open_host_device();

  const auto check = [&](const Case& c) {
    const CaseRun run = first_run(*forward, c);
    const Reference reference = compute_reference(c, run.inputs);
    expect_pass(check_thread_orders(others, run));
    expect_pass(check_against_oracle(run, reference));
    if (c.op != Operator::ssm_pack_bwd) return;
    const CaseRun stored = run_with_stored_checkpoints(*forward, run);
    expect_pass(check_thread_orders(others, stored));
    expect_pass(check_against_oracle(stored, reference));
  };
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {  // the backward scan sums by registers, by tensor cores
    Case c;
    c.name = "thread order";
    c.op = GetParam();
    c.dtype = dtype;
    c.dim = 40;
    c.initial_states = c.final_states = true;
    c.rows = {row_of({20, 1, 3, -2, 17}), row_of({43})};
    check(c);
    const Config second = second_config(c, forward->info().arch);
    // Other Configs have other barriers that matter: several tiles between checkpoints, several steps a tile.
    if (c.op == Operator::ssm_pack_bwd) {
      c.config = {{"tile_tokens", "4"}, {"step_tokens", "2"}, {"channel_sums", "split"}};
      check(c);
      // Lanes that share tokens, and more lanes than a step has tokens.
      c.config = {{"lanes", "4"}, {"vector", "2"}, {"step_tokens", "2"}, {"tile_tokens", "16"}};
      check(c);
      // Many states: lanes share channels, and there is one place for the states and sums of a tile.
      Case many = c;
      many.d_state = 72;
      many.dim = 6;
      many.config.clear();
      check(many);
      // One tile between checkpoints, and several sequences a block: each may begin where the one before has ended.
      many.config = {{"tile_tokens", "16"}};
      check(many);
    }
    c.config.clear();
    for (const Field& field : second.values.table()) {
      if (field.name == "checkpoint_tokens") continue;  // the forward fixes it where it stores states
      c.config.emplace_back(field.name, second.values.text(field.name));
    }
    check(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Host, ThreadOrder, testing::ValuesIn(kOperators),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace packjit::checking
