#include <gtest/gtest.h>

#include <tuple>

#include "tests/oracle/helpers.hpp"

namespace packjit::oracle::testing {
namespace {

struct Options {
  std::int64_t length = 0, groups = 1, d_state = 2;
  bool softplus = true, D = true, z = true, delta_bias = true, initial = true;
  bool constant_B = false, constant_C = false, complex_A = false;
};

ScanInput random_input(Values& values, const Options& options) {
  ScanInput in;
  in.length = options.length;
  in.dim = 4;
  in.d_state = options.d_state;
  in.groups = options.groups;
  in.softplus = options.softplus;
  in.u = values.array(in.length * in.dim);
  in.delta = values.array(in.length * in.dim, 0.1, 1.0);
  in.complex_A = options.complex_A;
  in.constant_B = options.constant_B;
  in.constant_C = options.constant_C;
  const std::int64_t state = in.d_state * (in.complex_A ? 2 : 1);  // values
  in.A = values.array(in.dim * state, -2.0, -0.1);
  in.B = values.array((in.constant_B ? in.dim : in.length * in.groups) * state);
  in.C = values.array((in.constant_C ? in.dim : in.length * in.groups) * state);
  if (options.D) in.D = values.array(in.dim);
  if (options.z) in.z = values.array(in.length * in.dim, -3.0, 3.0);
  if (options.delta_bias) in.delta_bias = values.array(in.dim, -0.5, 0.5);
  if (options.initial) in.initial_states = values.array(in.dim * state);
  return in;
}

void expect_all_gradients(ScanInput in, const Array& dout, const Array& dfinal) {
  const ScanGradient gradient = scan_backward(in, dout, dfinal);
  const auto loss = [&] {
    const ScanOutput result = scan_forward(in);
    return dot(dout, result.out) + (dfinal.empty() ? 0.0 : dot(dfinal, result.final_states));
  };
  expect_gradient(gradient.du, in.u, loss, "du");
  expect_gradient(gradient.ddelta, in.delta, loss, "ddelta");
  expect_gradient(gradient.dA, in.A, loss, "dA");
  expect_gradient(gradient.dB, in.B, loss, "dB");
  expect_gradient(gradient.dC, in.C, loss, "dC");
  // Empty where the input is absent, which these compare too.
  expect_gradient(gradient.dD, in.D, loss, "dD");
  expect_gradient(gradient.dz, in.z, loss, "dz");
  expect_gradient(gradient.ddelta_bias, in.delta_bias, loss, "ddelta_bias");
  // Filled even where the state is absent: zeros stand for it.
  in.initial_states.resize(in.A.size(), 0.0);
  expect_gradient(gradient.dinitial_states, in.initial_states, loss, "dinitial_states");
}

class ScanGradients : public ::testing::TestWithParam<std::tuple<std::int64_t, std::int64_t>> {};

TEST_P(ScanGradients, AgreeWithFiniteDifferences) {
  const auto [length, groups] = GetParam();
  Values values(3);
  for (int bits = 0; bits < 64; ++bits) {
    SCOPED_TRACE("options " + std::to_string(bits));
    Options options;
    options.length = length;
    options.groups = groups;
    options.softplus = bits & 1;
    options.D = bits & 2;
    options.z = bits & 4;
    options.delta_bias = bits & 8;
    options.initial = bits & 16;
    const ScanInput in = random_input(values, options);
    const Array dout = values.array(length * in.dim);
    const Array dfinal = bits & 32 ? values.array(in.dim * in.d_state) : Array{};
    expect_all_gradients(in, dout, dfinal);
  }
}

INSTANTIATE_TEST_SUITE_P(LengthGroups, ScanGradients,
                         ::testing::Combine(::testing::Values(0, 1, 2, 5), ::testing::Values(1, 2, 4)));

// Each part of a complex number is a variable of its own, and its gradient the one by it.
TEST(ScanGradientsOfKinds, ConstantBOrCAndComplexA) {
  for (int kind = 1; kind < 8; ++kind) {
    for (const bool everything : {false, true}) {
      SCOPED_TRACE("kind " + std::to_string(kind) + (everything ? ", all options" : ", bare"));
      Values values(7);
      Options options;
      options.length = 5;
      options.constant_B = kind & 1;
      options.constant_C = kind & 2;
      options.complex_A = kind & 4;
      options.groups = kind == 3 || kind == 7 ? 1 : 2;
      options.softplus = options.D = options.z = options.delta_bias = options.initial = everything;
      const ScanInput in = random_input(values, options);
      expect_all_gradients(in, values.array(5 * in.dim), everything ? values.array(in.A.size()) : Array{});
    }
  }
}

TEST(ScanGradientsOfSizes, StateSizes) {
  for (const std::int64_t d_state : {1, 3, 16}) {
    SCOPED_TRACE("d_state " + std::to_string(d_state));
    Values values(4);
    Options options;
    options.length = 7;
    options.groups = 2;
    options.d_state = d_state;
    const ScanInput in = random_input(values, options);
    expect_all_gradients(in, values.array(7 * in.dim), values.array(in.dim * d_state));
  }
}

TEST(ScanGradientsOfSizes, SoftplusOnBothSidesOfItsLinearPart) {
  Values values(5);
  Options options;
  options.length = 3;
  ScanInput in = random_input(values, options);
  in.delta = {25, -8, 21, 19, -3, 22, 18, -6, 0, 23, 1, 19};
  // A small enough for what dt * A does to stay of order 1, so that four points resolve it.
  for (double& a : in.A) a *= 0.02;
  expect_all_gradients(in, values.array(3 * in.dim), values.array(in.dim * in.d_state));
}

TEST(ScanCut, CutRunWithHandedOverStateEqualsTheUncutRun) {
  Values values(6);
  Options options;
  options.length = 9;
  options.groups = 2;
  options.d_state = 3;
  const ScanInput whole = random_input(values, options);
  const std::int64_t group_row = whole.groups * whole.d_state;
  const Array dout = values.array(whole.length * whole.dim);
  const Array dfinal = values.array(whole.dim * whole.d_state);
  const ScanOutput whole_out = scan_forward(whole);
  const ScanGradient whole_gradient = scan_backward(whole, dout, dfinal);

  const auto piece = [&](std::int64_t from, std::int64_t to) {
    ScanInput in = whole;
    in.length = to - from;
    for (Array* values_by_channel : {&in.u, &in.delta, &in.z}) {
      *values_by_channel = tokens(*values_by_channel, from, to, whole.dim);
    }
    for (Array* values_by_group : {&in.B, &in.C}) *values_by_group = tokens(*values_by_group, from, to, group_row);
    return in;
  };

  // A cut at either end would leave z without elements, which reads as "no gate"; there is nothing to gate there.
  for (std::int64_t cut = 0; cut <= whole.length; ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    const ScanInput first = piece(0, cut);
    ScanInput second = piece(cut, whole.length);
    const ScanOutput first_out = scan_forward(first);
    second.initial_states = first_out.final_states;
    const ScanOutput second_out = scan_forward(second);
    EXPECT_EQ(joined(first_out.out, second_out.out), whole_out.out);
    EXPECT_EQ(second_out.final_states, whole_out.final_states);

    const ScanGradient after = scan_backward(second, tokens(dout, cut, whole.length, whole.dim), dfinal);
    const ScanGradient before = scan_backward(first, tokens(dout, 0, cut, whole.dim), after.dinitial_states);
    // Per token nothing changes; sums over tokens are taken in another order, so their last bits may differ.
    EXPECT_EQ(joined(before.du, after.du), whole_gradient.du);
    EXPECT_EQ(joined(before.ddelta, after.ddelta), whole_gradient.ddelta);
    EXPECT_EQ(joined(before.dB, after.dB), whole_gradient.dB);
    EXPECT_EQ(joined(before.dC, after.dC), whole_gradient.dC);
    EXPECT_EQ(joined(before.dz, after.dz), whole_gradient.dz);
    EXPECT_EQ(before.dinitial_states, whole_gradient.dinitial_states);
    expect_near(sum(before.dA, after.dA), whole_gradient.dA, 1e-13, "dA");
    expect_near(sum(before.dD, after.dD), whole_gradient.dD, 1e-13, "dD");
    expect_near(sum(before.ddelta_bias, after.ddelta_bias), whole_gradient.ddelta_bias, 1e-13, "ddelta_bias");
  }
}

}  // namespace
}  // namespace packjit::oracle::testing
