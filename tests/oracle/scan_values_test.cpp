#include <gtest/gtest.h>

#include <limits>

#include "tests/oracle/helpers.hpp"

// Values worked out by hand; the working stands beside each. With dt = 1 and A = -ln 2 a state halves at each token.

namespace packjit::oracle::testing {
namespace {

constexpr double kLn2 = 0.6931471805599453;
constexpr double kLn3 = 1.0986122886681098;

// dt = delta, one group, no D, z, delta_bias or initial state.
ScanInput plain(std::int64_t length, std::int64_t dim, std::int64_t d_state) {
  ScanInput in;
  in.length = length;
  in.dim = dim;
  in.d_state = d_state;
  in.softplus = false;
  in.delta.assign(static_cast<std::size_t>(length * dim), 1.0);
  return in;
}

ScanInput halving() {
  ScanInput in = plain(3, 1, 1);
  in.A = {-kLn2};
  in.u = {1, 2, 3};
  in.B = {1, 2, 1};
  in.C = {1, 1, 2};
  in.initial_states = {4};
  return in;
}

TEST(ScanValues, Recurrence) {
  const ScanOutput result = scan_forward(halving());
  // h: 4/2 + 1*1 = 3, 3/2 + 2*2 = 5.5, 5.5/2 + 1*3 = 5.75; y = C*h
  expect_near(result.out, {3, 5.5, 11.5}, 1e-14, "out");
  expect_near(result.final_states, {5.75}, 1e-14, "final_states");
}

TEST(ScanValues, NoInitialStateMeansZero) {
  ScanInput in = halving();
  in.initial_states.clear();
  // h: 1, 1/2 + 4 = 4.5, 4.5/2 + 3 = 5.25
  expect_near(scan_forward(in).out, {1, 4.5, 10.5}, 1e-14, "out");
}

TEST(ScanValues, SkipIsAddedBeforeTheGate) {
  ScanInput in = halving();
  in.D = {10};
  expect_near(scan_forward(in).out, {13, 25.5, 41.5}, 1e-13, "out");  // y + 10*u
  in.z = {0, kLn3, -kLn3};
  // silu: 0, 3/4 ln 3 = 0.82395921650108235, -1/4 ln 3 = -0.27465307216702745; 25.5 and 41.5 times that
  expect_near(scan_forward(in).out, {0, 21.010960020777600, -11.398102494931639}, 1e-13, "out");
}

TEST(ScanValues, StepSizeScalesDecayAndInput) {
  ScanInput in = plain(1, 1, 1);
  in.delta = {2};
  in.A = {-kLn2};
  in.u = {5};
  in.B = {3};
  in.C = {1};
  in.initial_states = {4};
  expect_near(scan_forward(in).out, {31}, 1e-14, "out");  // 4 * 2^-2 + 2*3*5
}

TEST(ScanValues, SoftplusOfDeltaPlusBias) {
  // With B = C = u = 1 and no history the output is dt.
  ScanInput in = plain(5, 1, 1);
  in.softplus = true;
  in.A = {0};
  in.C = in.B = in.u = {1, 1, 1, 1, 1};
  in.delta = {-1, 0, 24, -41, 19};
  in.delta_bias = {1};
  in.u = {1, 0, 0, 0, 0};
  EXPECT_NEAR(scan_forward(in).out[0], kLn2, 1e-16);  // softplus(0) = ln 2
  in.u = {0, 1, 0, 0, 0};
  EXPECT_NEAR(scan_forward(in).out[1], 1.3132616875182228, 1e-15);  // ln(1 + e), e = 2.718281828459045
  in.u = {0, 0, 1, 0, 0};
  EXPECT_EQ(scan_forward(in).out[2], 25.0);  // linear above 20; the true value is 1.4e-11 more
  in.u = {0, 0, 0, 1, 0};
  EXPECT_NEAR(scan_forward(in).out[3], 4.248354255291589e-18, 1e-32);  // e^-40; the next term is e^-80 / 2
  in.u = {0, 0, 0, 0, 1};
  EXPECT_NEAR(scan_forward(in).out[4], 20.000000002061153, 1e-14);  // 20 is not above 20: 20 + e^-20
}

TEST(ScanValues, ChannelsAndStatesHaveTheirOwnDecay) {
  ScanInput in = plain(1, 2, 2);
  in.A = {-kLn2, -2 * kLn2, -3 * kLn2, 0};
  in.u = {0, 0};
  in.B = {1, 1};
  in.C = {1, 1};
  in.initial_states = {1, 10, 100, 1000};
  const ScanOutput result = scan_forward(in);
  expect_near(result.final_states, {0.5, 2.5, 12.5, 1000}, 1e-13, "final_states");  // 1/2, 10/4, 100/8, 1000
  expect_near(result.out, {3, 1012.5}, 1e-12, "out");
}

TEST(ScanValues, ComplexStatesTurnAndCountTwice) {
  ScanInput in = plain(3, 1, 1);
  in.complex_A = in.constant_B = true;
  in.A = {-kLn2, 1.5707963267948966};  // exp(A) = i/2
  in.u = {1, 2, 0};
  in.B = {1, 2};               // 1 + 2i
  in.C = {1, 0, 0, 1, 2, -1};  // 1, i, 2 - i
  in.initial_states = {4, 0};
  const ScanOutput result = scan_forward(in);
  // h: 4 * i/2 + (1+2i) = 1+4i, (1+4i) * i/2 + 2 * (1+2i) = 4.5i, 4.5i * i/2 = -2.25; y = 2 * Re(C*h)
  expect_near(result.out, {2, -9, -9}, 1e-14, "out");
  expect_near(result.final_states, {-2.25, 0}, 1e-14, "final_states");
}

TEST(ScanValues, ChannelsShareTheirGroup) {
  ScanInput in = plain(1, 4, 1);
  in.groups = 2;
  in.A = {-1, -1, -1, -1};
  in.u = {1, 10, 100, 1000};
  in.B = {2, 3};
  in.C = {5, 7};
  // channels 0 and 1: 2*5*u; channels 2 and 3: 3*7*u
  EXPECT_EQ(scan_forward(in).out, (Array{10, 100, 2100, 21000}));
  const ScanGradient gradient = scan_backward(in, {1, 1, 1, 1}, {});
  EXPECT_EQ(gradient.dB, (Array{55, 7700}));  // 5 * (1 + 10), 7 * (100 + 1000)
  EXPECT_EQ(gradient.dC, (Array{22, 3300}));  // 2 * 11, 3 * 1100
}

TEST(ScanValues, BackwardOfTwoTokens) {
  ScanInput in = plain(2, 1, 1);
  in.A = {-kLn2};
  in.u = {1, 2};
  in.B = {1, 2};
  in.C = {3, 5};
  in.D = {10};
  in.initial_states = {4};
  const ScanGradient gradient = scan_backward(in, {1, 2}, {7});
  // States 4, 3, 5.5.
  // Token 1: dh = 7 + 2*5 = 17; dC = 2*5.5; dB = 17*2; du = 17*2 + 2*10; ddt = 17 * (-ln 2 * 3/2 + 2*2) = 68 - 25.5 ln
  // 2; dA = 17 * 3/2 = 25.5; on to token 0: 17/2. Token 0: dh = 8.5 + 1*3 = 11.5; dC = 3; dB = 11.5; du = 11.5 + 10;
  // ddt = 11.5 * (-ln 2 * 4/2 + 1) = 11.5 - 23 ln 2; dA = 11.5 * 4/2 = 23; on to the initial state: 11.5/2.
  expect_near(gradient.du, {21.5, 54}, 1e-13, "du");
  expect_near(gradient.ddelta, {-4.442385152878742, 50.324746895721395}, 1e-13, "ddelta");
  expect_near(gradient.dA, {48.5}, 1e-13, "dA");
  expect_near(gradient.dB, {11.5, 34}, 1e-13, "dB");
  expect_near(gradient.dC, {3, 11}, 1e-13, "dC");
  expect_near(gradient.dD, {5}, 1e-13, "dD");  // 1*1 + 2*2
  expect_near(gradient.dinitial_states, {5.75}, 1e-13, "dinitial_states");
  EXPECT_TRUE(gradient.dz.empty());
  EXPECT_TRUE(gradient.ddelta_bias.empty());
}

TEST(ScanValues, SoftplusSlopeIsOneAboveTwentyAndTheSigmoidBelow) {
  ScanInput in = plain(1, 2, 1);
  in.softplus = true;
  in.delta = {25, -kLn3};
  in.A = {-1, -1};
  in.u = {3, 3};
  in.B = {1};
  in.C = {1};
  // No history, so d out / d dt = u = 3; the slope is 1 and 1/4.
  const ScanGradient gradient = scan_backward(in, {1, 1}, {});
  EXPECT_EQ(gradient.ddelta[0], 3.0);
  EXPECT_NEAR(gradient.ddelta[1], 0.75, 1e-15);
}

TEST(ScanValues, EmptyRunHandsItsStateOn) {
  ScanInput in = plain(0, 2, 2);
  in.A = {-1, -2, -3, -4};
  in.initial_states = {1, 2, 3, 4};
  const ScanOutput result = scan_forward(in);
  EXPECT_TRUE(result.out.empty());
  EXPECT_EQ(result.final_states, (Array{1, 2, 3, 4}));
  EXPECT_EQ(result.mean_dt_A_slowest, 0.0);
  const ScanGradient gradient = scan_backward(in, {}, {5, 6, 7, 8});
  EXPECT_EQ(gradient.dinitial_states, (Array{5, 6, 7, 8}));
  EXPECT_EQ(gradient.dA, (Array{0, 0, 0, 0}));
  in.initial_states.clear();
  EXPECT_EQ(scan_forward(in).final_states, (Array{0, 0, 0, 0}));
}

TEST(ScanValues, MeanDecayOfTheSlowestState) {
  ScanInput in = plain(3, 2, 2);
  in.delta.assign(6, 0.5);
  in.A = {-1, -4, -2, -0.25};
  in.u.assign(6, 1.0);
  in.C = in.B = Array(6, 1.0);
  EXPECT_EQ(scan_forward(in).mean_dt_A_slowest, -0.125);  // 0.5 * -0.25
  in.delta = {1, 8, 2, 8, 3, 8};                          // means 2 and 8: the slowest is channel 0's first state
  EXPECT_EQ(scan_forward(in).mean_dt_A_slowest, -2.0);    // 2 * -1 and 8 * -0.25 alike
  in.A[3] = -0.5;
  EXPECT_EQ(scan_forward(in).mean_dt_A_slowest, -2.0);  // 8 * -0.5 = -4 is faster
  in.delta[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(scan_forward(in).mean_dt_A_slowest, -4.0);  // a channel without a mean does not count
}

}  // namespace
}  // namespace packjit::oracle::testing
