// Faults K1 to K12: boundaries and gradients.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "runtime/boundaries.hpp"
#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

constexpr std::array kBackwards = {Operator::conv1d_pack_bwd, Operator::ssm_pack_bwd};

/// A convolution that adds up the last four inputs of ones, one channel, fp32.
struct Counting {
  explicit Counting(Case c) : counting(std::move(c)) {
    counting.dim = 1;
    counting.bias = counting.silu = false;
    inputs["x"] =
        fp32_tensor({counting.batch(), counting.seqlen(), 1}, repeated(1, counting.batch() * counting.seqlen()));
    inputs["weight"] = fp32_tensor({1, 4}, repeated(1, 4));
  }
  Case counting;
  HostTensors inputs;
};

TEST_P(KnownFaults, K01_boundary_data_missing) {
  EXPECT_THROW((void)boundaries_from_tensors({}, false, 1, 16), std::invalid_argument);
  const Counting ones(small(Operator::conv1d_pack_fwd, {{5, 2, 4, -5}}));
  const HostTensors outputs = run_case(device(), ones.counting, ones.inputs);
  EXPECT_EQ(outputs.at("out").to_double(), (std::vector<double>{1, 2, 3, 4, 4, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 0}));
  for (const Operator op : kOperators) expect_oracle_and_padded(small(op, {{5, 2, 4, -5}}));
}

TEST_P(KnownFaults, K02_packed_backward_only_wrong) {
  Case conv = small(Operator::conv1d_pack_bwd, {{100, 200, 212}});
  conv.config = {{"tile_tokens", "256"}};
  expect_oracle_and_padded(conv);
  Case scan = small(Operator::ssm_pack_bwd, {{100, 200, 212}});
  expect_oracle_and_padded(scan);
  // The longest tile of the scan that leaves room for four channels in the shared memory that every GPU has.
  scan.config = {{"tile_tokens", "128"}, {"block", "32"}, {"lanes", "8"}, {"vector", "4"}, {"step_tokens", "8"}};
  expect_oracle(scan);
}

TEST_P(KnownFaults, K03_boundary_ids_read_past_the_end) {
  for (const std::int64_t seqlen : {63, 64, 65, 127, 128, 129, 257, 4099}) {
    for (const Operator op : kOperators) expect_oracle(small(op, {{seqlen / 3, seqlen - seqlen / 3}}));
  }
}

TEST_P(KnownFaults, K04_weight_gradient_with_several_rows) {
  for (const Operator op : kBackwards) expect_oracle(small(op, {{5, 11}, {9, 4, 3}}));
  // dweight of two rows of ones: tap k of a sequence of n tokens sees max(n - k, 0) ones.
  Counting ones(small(Operator::conv1d_pack_bwd, {{2, 3}, {1, 4}}));
  ones.inputs["dout"] = fp32_tensor({2, 5, 1}, repeated(1, 10));
  const HostTensors gradients = run_case(device(), ones.counting, ones.inputs);
  EXPECT_EQ(gradients.at("dweight").to_double(), (std::vector<double>{1, 3, 6, 10}));
}

TEST_P(KnownFaults, K05_final_state_gradient_short_sequences) {
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    expect_oracle(with_states(small(op, {{1, 2, 3, 4}, {3, 3, 2, 2}})));
  }
  // One token: the final state is the initial state moved up by one, with the token behind.
  Counting forward(with_states(small(Operator::conv1d_pack_fwd, {{1}})));
  forward.inputs["x"] = fp32_tensor({1, 1, 1}, {7});
  forward.inputs["initial_states"] = fp32_tensor({1, 1, 3}, {4, 5, 6});
  EXPECT_EQ(run_case(device(), forward.counting, forward.inputs).at("final_states").to_double(),
            (std::vector<double>{5, 6, 7}));
  Counting backward(with_states(small(Operator::conv1d_pack_bwd, {{1}})));
  backward.inputs["initial_states"] = fp32_tensor({1, 1, 3}, {4, 5, 6});
  backward.inputs["dout"] = fp32_tensor({1, 1, 1}, {0});
  backward.inputs["dfinal_states"] = fp32_tensor({1, 1, 3}, {10, 20, 30});
  const HostTensors gradients = run_case(device(), backward.counting, backward.inputs);
  EXPECT_EQ(gradients.at("dinitial_states").to_double(), (std::vector<double>{0, 10, 20}));
  EXPECT_EQ(gradients.at("dx").to_double(), (std::vector<double>{30}));
}

/// A scan of one state that only decays: dt = 0.1, A = -1, no input. After n tokens the state is exp(-0.1 n).
TEST_P(KnownFaults, K06_initial_state_decayed_from_the_tile_start) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{20}, std::vector<std::int64_t>{3, 20}, std::vector<std::int64_t>{15, 20, 6}}) {
    Case c = with_states(small(Operator::ssm_pack_fwd, {lengths}));
    c.dim = c.d_state = 1;
    c.softplus = c.D = c.z = c.delta_bias = false;
    c.config = {{"tile_tokens", "16"}};
    const auto n = static_cast<std::int64_t>(lengths.size()), tokens = c.seqlen();
    HostTensors inputs;
    inputs["u"] = fp32_tensor({1, tokens, 1}, repeated(0, tokens));
    inputs["delta"] = fp32_tensor({1, tokens, 1}, repeated(0.1, tokens));
    inputs["A"] = fp32_tensor({1, 1}, {-1});
    inputs["B"] = inputs["C"] = fp32_tensor({1, tokens, 1, 1}, repeated(1, tokens));
    inputs["initial_states"] = fp32_tensor({n, 1, 1}, repeated(1, n));
    const std::size_t of_20_tokens = lengths.size() == 1 ? 0 : 1;
    EXPECT_NEAR(run_case(device(), c, inputs).at("final_states").to_double()[of_20_tokens], 0.1353352832366127, 1e-6);
  }
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    for (const auto& rows : {std::vector<std::vector<std::int64_t>>{{37}}, {{5, 17, 15}}}) {
      Case c = with_states(small(op, rows));
      c.config = {{"tile_tokens", "16"}};
      expect_oracle_and_padded(c);
    }
  }
}

TEST_P(KnownFaults, K07_upstream_gradient_is_a_view) {
  for (const Operator op : kBackwards) {
    const Case c = small(op, {{6, 4}, {3, 7}});
    HostTensors inputs = make_inputs(c);
    // One third of a fused tensor.
    StridedCall fused(device(), c);
    fused.place("dout", {10 * 3 * c.dim, 3 * c.dim, 1}, c.dim);
    expect_pass(compare_with_reference(CheckKind::oracle, c, fused.run(inputs), compute_reference(c, inputs)));
    // The gradient of a plain sum: one number for all elements.
    inputs["dout"] = fp32_tensor({2, 10, c.dim}, repeated(1, 20 * c.dim));
    StridedCall expanded(device(), c);
    expanded.place("dout", {0, 0, 0});
    expect_pass(compare_with_reference(CheckKind::oracle, c, expanded.run(inputs), compute_reference(c, inputs)));
  }
}

TEST_P(KnownFaults, K08_integer_widths_of_positions) {
  constexpr std::int64_t kTokens = 70'000;  // more than 16 bits hold
  const auto positions_up_to = [](std::int64_t highest) {
    std::vector<double> positions;
    for (std::int64_t t = 0; t < kTokens; ++t) positions.push_back(static_cast<double>(std::min(t, highest)));
    return positions;
  };
  const std::vector<double> positions = positions_up_to(kTokens);
  const auto map_for = [](ElementType type, const std::vector<double>& values) {
    const auto tensor = HostTensor::from_double(type, {1, kTokens}, values);
    return build_sequence_map(boundaries_from_tensor(Boundaries::Form::position_indices, tensor, 1, kTokens), 1,
                              kTokens);
  };
  const SequenceMap wide = map_for(ElementType::int64, positions);
  EXPECT_EQ(wide.n_sequences, 1);
  EXPECT_EQ(map_for(ElementType::int32, positions), wide);
  EXPECT_EQ(map_for(ElementType::int16, positions_up_to(32'766)), wide);
  EXPECT_EQ(map_for(ElementType::uint16, positions_up_to(65'534)), wide);
  try {
    (void)map_for(ElementType::fp32, positions);
    ADD_FAILURE() << "fp32 positions were taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("fp32"), std::string::npos) << error.what();
  }
  // Four ones are seen from the fourth token of the sequence to its last, and nowhere less.
  const Counting ones(small(Operator::conv1d_pack_fwd, {{kTokens}}));
  const std::vector<double> out = run_case(device(), ones.counting, ones.inputs).at("out").to_double();
  std::vector<double> expected = repeated(4, kTokens);
  expected[0] = 1, expected[1] = 2, expected[2] = 3;
  EXPECT_TRUE(out == expected);
}

TEST_P(KnownFaults, K09_padding_decayed_the_state_or_got_gradient) {
  for (const Operator op : kOperators) {
    const Case c = with_states(small(op, {{-5, 7, -5}}));
    const CaseRun run = first_run(device(), c);
    expect_pass(check_against_oracle(run, compute_reference(c, run.inputs)));
    expect_pass(check_isolation(device(), run));  // NaN in the padding
  }
}

TEST_P(KnownFaults, K10_rows_joined) {
  for (const Operator op : kOperators) {
    const Case c = with_states(small(op, {{4, 8}, {12}, {1, 9, 2}}));
    const CaseRun run = first_run(device(), c);
    expect_pass(check_against_oracle(run, compute_reference(c, run.inputs)));
    expect_pass(check_isolation(device(), run));
  }
}

TEST_P(KnownFaults, K11_infinity_reached_the_next_sequence) {
  for (const Operator op : kOperators) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      const Case c = small(op, {{5, 6, 3, 9}}, dtype);
      const CaseRun run = first_run(device(), c);
      expect_pass(check_isolation_of(device(), run, 1));
    }
  }
}

TEST_P(KnownFaults, K12_boundaries_ignored_for_one_layout) {
  for (const Operator op : kOperators) {
    for (const Layout layout : {Layout::token_major, Layout::channel_major, Layout::strided}) {
      Case c = with_states(small(op, {{5, 6, -2, 3}, {16}}));
      c.layout = layout;
      expect_oracle(c);
    }
  }
}

/// A batch of tokens may end before, on or behind a boundary, the tile's end and the row's end.
TEST_P(KnownFaults, K13_convolutions_that_load_any_number_of_tokens_together) {
  const decltype(Case::config) configs[] = {
      {{"load_tokens", "1"}, {"tile_tokens", "1"}, {"block_tiles", "128"}, {"vector", "1"}},
      {{"load_tokens", "3"}, {"tile_tokens", "7"}, {"block_tiles", "2"}, {"vector", "2"}},
      {{"load_tokens", "2"}, {"tile_tokens", "24"}, {"block_tiles", "8"}, {"vector", "4"}, {"prefetch", "off"}},
      {{"load_tokens", "16"}, {"tile_tokens", "5"}, {"block_tiles", "1"}, {"vector", "4"}},
  };
  // The backward's batches also come through shared memory.
  const decltype(Case::config) staged[] = {
      {{"stages", "1"}, {"load_tokens", "3"}, {"tile_tokens", "7"}, {"block_tiles", "2"}, {"vector", "2"}},
      {{"stages", "3"}, {"load_tokens", "4"}, {"tile_tokens", "24"}, {"block_tiles", "8"}, {"vector", "4"}},
      {{"stages", "8"}, {"load_tokens", "2"}, {"tile_tokens", "5"}, {"block_tiles", "1"}, {"vector", "1"}},
  };
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    std::vector<decltype(Case::config)> all(std::begin(configs), std::end(configs));
    if (is_backward(op)) {
      for (auto& config : all) config.emplace_back("stages", "0");
      all.insert(all.end(), std::begin(staged), std::end(staged));
    }
    for (const auto& config : all) {
      Case c = with_states(small(op, {{5, 40, -3, 6}, {1, 1, 2, 50}}));
      c.dim = 12;
      c.config = config;
      expect_oracle_and_padded(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Host, KnownFaults, testing::Values("host"));
INSTANTIATE_TEST_SUITE_P(Cuda, KnownFaults, testing::Values("cuda"));

}  // namespace
}  // namespace packjit::checking
