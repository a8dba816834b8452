#include <gtest/gtest.h>

#include <set>

#include "tests/oracle/helpers.hpp"

namespace packjit::oracle::testing {
namespace {

ConvInput random_input(Values& values, std::int64_t length, std::int64_t width, bool silu, bool bias, bool initial) {
  ConvInput in;
  in.length = length;
  in.dim = 3;
  in.width = width;
  in.silu = silu;
  in.x = values.array(length * in.dim);
  in.weight = values.array(in.dim * width);
  if (bias) in.bias = values.array(in.dim);
  if (initial) in.initial_states = values.array(in.dim * (width - 1));
  return in;
}

class ConvGradients : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(ConvGradients, AgreeWithFiniteDifferences) {
  const std::int64_t width = GetParam();
  Values values(1);
  for (const std::int64_t length : std::set<std::int64_t>{0, 1, width - 1, width, width + 3}) {
    for (int options = 0; options < 16; ++options) {
      const bool silu = options & 1, bias = options & 2, initial = options & 4, final_gradient = options & 8;
      SCOPED_TRACE("length " + std::to_string(length) + " options " + std::to_string(options));
      ConvInput in = random_input(values, length, width, silu, bias, initial);
      const Array dout = values.array(length * in.dim);
      const Array dfinal = final_gradient ? values.array(in.dim * (width - 1)) : Array{};
      const ConvGradient gradient = conv_backward(in, dout, dfinal);

      const auto loss = [&] {
        const ConvOutput result = conv_forward(in);
        return dot(dout, result.out) + (final_gradient ? dot(dfinal, result.final_states) : 0.0);
      };
      expect_gradient(gradient.dx, in.x, loss, "dx");
      expect_gradient(gradient.dweight, in.weight, loss, "dweight");
      // Both are filled even where the input is absent: zeros stand for it.
      if (!bias) in.bias.assign(static_cast<std::size_t>(in.dim), 0.0);
      expect_gradient(gradient.dbias, in.bias, loss, "dbias");
      if (!initial) in.initial_states.assign(static_cast<std::size_t>(in.dim * (width - 1)), 0.0);
      expect_gradient(gradient.dinitial_states, in.initial_states, loss, "dinitial_states");
    }
  }
}

TEST_P(ConvGradients, CutRunWithHandedOverStateEqualsTheUncutRun) {
  const std::int64_t width = GetParam();
  const std::int64_t length = width + 4;
  Values values(2);
  const ConvInput whole = random_input(values, length, width, true, true, true);
  const Array dout = values.array(length * whole.dim);
  const Array dfinal = values.array(whole.dim * (width - 1));
  const ConvOutput whole_out = conv_forward(whole);
  const ConvGradient whole_gradient = conv_backward(whole, dout, dfinal);

  for (std::int64_t cut = 0; cut <= length; ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    ConvInput first = whole, second = whole;
    first.length = cut;
    first.x = tokens(whole.x, 0, cut, whole.dim);
    second.length = length - cut;
    second.x = tokens(whole.x, cut, length, whole.dim);
    const ConvOutput first_out = conv_forward(first);
    second.initial_states = first_out.final_states;
    const ConvOutput second_out = conv_forward(second);
    EXPECT_EQ(joined(first_out.out, second_out.out), whole_out.out);
    EXPECT_EQ(second_out.final_states, whole_out.final_states);

    const ConvGradient after = conv_backward(second, tokens(dout, cut, length, whole.dim), dfinal);
    const ConvGradient before = conv_backward(first, tokens(dout, 0, cut, whole.dim), after.dinitial_states);
    // Sums are taken in another order, so the last bits may differ.
    expect_near(joined(before.dx, after.dx), whole_gradient.dx, 1e-13, "dx");
    expect_near(before.dinitial_states, whole_gradient.dinitial_states, 1e-13, "dinitial_states");
    expect_near(sum(before.dweight, after.dweight), whole_gradient.dweight, 1e-13, "dweight");
    expect_near(sum(before.dbias, after.dbias), whole_gradient.dbias, 1e-13, "dbias");
  }
}

INSTANTIATE_TEST_SUITE_P(Width, ConvGradients, ::testing::Values(1, 2, 4, 16));

}  // namespace
}  // namespace packjit::oracle::testing
