#include <gtest/gtest.h>

#include "tests/oracle/helpers.hpp"

// Values worked out by hand; the working stands beside each.

namespace packjit::oracle::testing {
namespace {

ConvInput linear(std::int64_t length, std::int64_t dim, std::int64_t width) {
  ConvInput in;
  in.length = length;
  in.dim = dim;
  in.width = width;
  in.silu = false;
  return in;
}

TEST(ConvValues, LastColumnMeetsTheCurrentTokenAndBiasIsAdded) {
  ConvInput in = linear(3, 1, 2);
  in.x = {1, 10, 100};
  in.weight = {2, 3};
  in.bias = {1};
  in.initial_states = {5};
  const ConvOutput result = conv_forward(in);
  // 1 + 3*1 + 2*5, 1 + 3*10 + 2*1, 1 + 3*100 + 2*10
  EXPECT_EQ(result.out, (Array{14, 33, 321}));
  EXPECT_EQ(result.final_states, (Array{100}));
}

TEST(ConvValues, ShortRunReachesIntoTheInitialState) {
  ConvInput in = linear(1, 1, 4);
  in.x = {7};
  in.weight = {1000, 100, 10, 1};
  in.initial_states = {1, 2, 3};
  const ConvOutput result = conv_forward(in);
  EXPECT_EQ(result.out, (Array{1237}));  // 1000*1 + 100*2 + 10*3 + 1*7
  EXPECT_EQ(result.final_states, (Array{2, 3, 7}));
}

TEST(ConvValues, SecondTokenOfAShortRunSkipsTheOldestColumn) {
  ConvInput in = linear(2, 1, 4);
  in.x = {7, 8};
  in.weight = {1000, 100, 10, 1};
  in.initial_states = {1, 2, 3};
  const ConvOutput result = conv_forward(in);
  EXPECT_EQ(result.out, (Array{1237, 2378}));  // the second: 1000*2 + 100*3 + 10*7 + 1*8
  EXPECT_EQ(result.final_states, (Array{3, 7, 8}));
}

TEST(ConvValues, NoInitialStateMeansZeros) {
  ConvInput in = linear(2, 1, 4);
  in.x = {7, 8};
  in.weight = {1000, 100, 10, 1};
  const ConvOutput result = conv_forward(in);
  EXPECT_EQ(result.out, (Array{7, 78}));  // 1*7, 10*7 + 1*8
  EXPECT_EQ(result.final_states, (Array{0, 7, 8}));
}

TEST(ConvValues, EmptyRunHandsItsStateOn) {
  ConvInput in = linear(0, 2, 3);
  in.weight = {1, 2, 3, 4, 5, 6};
  in.initial_states = {1, 2, 3, 4};
  const ConvOutput result = conv_forward(in);
  EXPECT_TRUE(result.out.empty());
  EXPECT_EQ(result.final_states, (Array{1, 2, 3, 4}));
  in.initial_states.clear();
  EXPECT_EQ(conv_forward(in).final_states, (Array{0, 0, 0, 0}));
}

TEST(ConvValues, EachChannelHasItsOwnWeightBiasAndState) {
  ConvInput in = linear(2, 2, 2);
  in.x = {1, 2, 3, 4};          // channel 0: 1, 3; channel 1: 2, 4
  in.weight = {10, 1, 100, 5};  // channel 0: 10 before, 1 now; channel 1: 100 before, 5 now
  in.bias = {0.5, -0.5};
  in.initial_states = {7, 8};
  const ConvOutput result = conv_forward(in);
  // channel 0: 0.5 + 70 + 1, 0.5 + 10 + 3; channel 1: -0.5 + 800 + 10, -0.5 + 200 + 20
  EXPECT_EQ(result.out, (Array{71.5, 809.5, 13.5, 219.5}));
  EXPECT_EQ(result.final_states, (Array{3, 4}));
}

TEST(ConvValues, WidthOneHasNoState) {
  ConvInput in = linear(2, 1, 1);
  in.x = {2, 3};
  in.weight = {4};
  const ConvOutput result = conv_forward(in);
  EXPECT_EQ(result.out, (Array{8, 12}));
  EXPECT_TRUE(result.final_states.empty());
}

TEST(ConvValues, SiluOfTheSum) {
  ConvInput in = linear(4, 1, 1);
  in.silu = true;
  // ln 3: the sigmoid is 3/4, so silu is 0.75 * 1.0986122886681098; ln(1/3): the sigmoid is 1/4.
  in.x = {0, 1.0986122886681098, -1.0986122886681098, 800};
  in.weight = {1};
  expect_near(conv_forward(in).out, {0, 0.82395921650108235, -0.27465307216702745, 800}, 1e-15, "out");
}

TEST(ConvValues, SiluFarBelowZeroIsZero) {
  ConvInput in = linear(1, 1, 1);
  in.silu = true;
  in.x = {-800};  // exp(800) overflows fp64; -800 / inf is -0
  in.weight = {1};
  EXPECT_EQ(conv_forward(in).out, (Array{0}));
}

TEST(ConvValues, BackwardOfARunShorterThanItsHistory) {
  ConvInput in = linear(1, 1, 4);
  in.x = {7};
  in.weight = {1000, 100, 10, 1};
  in.initial_states = {1, 2, 3};
  const ConvGradient result = conv_backward(in, {2}, {10, 20, 30});
  // The final state is (initial[1], initial[2], x[0]), so 10 and 20 pass through to the initial state and 30 goes to x.
  EXPECT_EQ(result.dx, (Array{32}));                          // 2*1 + 30
  EXPECT_EQ(result.dinitial_states, (Array{2000, 210, 40}));  // 2*1000, 2*100 + 10, 2*10 + 20
  EXPECT_EQ(result.dweight, (Array{2, 4, 6, 14}));            // 2 * (1, 2, 3, 7)
  EXPECT_EQ(result.dbias, (Array{2}));
}

TEST(ConvValues, BackwardOfAnEmptyRunPassesTheStateGradientThrough) {
  ConvInput in = linear(0, 1, 4);
  in.weight = {1000, 100, 10, 1};
  const ConvGradient result = conv_backward(in, {}, {10, 20, 30});
  EXPECT_TRUE(result.dx.empty());
  EXPECT_EQ(result.dinitial_states, (Array{10, 20, 30}));
  EXPECT_EQ(result.dweight, (Array{0, 0, 0, 0}));
  EXPECT_EQ(result.dbias, (Array{0}));
}

TEST(ConvValues, BackwardThroughSilu) {
  ConvInput in = linear(1, 1, 1);
  in.silu = true;
  in.x = {1.0986122886681098};  // ln 3
  in.weight = {1};
  // silu'(ln 3) = 3/4 * (1 + ln 3 * 1/4) = 0.75 + 0.1875 * 1.0986122886681098
  const ConvGradient result = conv_backward(in, {1}, {});
  EXPECT_NEAR(result.dx[0], 0.95598980412527059, 1e-15);
  EXPECT_NEAR(result.dbias[0], 0.95598980412527059, 1e-15);
}

}  // namespace
}  // namespace packjit::oracle::testing
