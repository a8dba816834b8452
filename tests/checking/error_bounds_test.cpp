#include "checking/error_bounds.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace packjit::checking {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

TEST(RelativeError, IsTheNormOfTheDifferenceOverTheNormOfTheReference) {
  EXPECT_DOUBLE_EQ(relative_error(Values{3, 4.5}, Values{3, 4}), 0.1);
  EXPECT_DOUBLE_EQ(relative_error(Values{3, 4}, Values{3, 4}), 0);
  EXPECT_DOUBLE_EQ(relative_error(Values{}, Values{}), 0);
}

TEST(RelativeError, OfAZeroReferenceIsAbsolute) {
  EXPECT_DOUBLE_EQ(relative_error(Values{3e-6, 4e-6}, Values{0, 0}), 5e-6);
  EXPECT_DOUBLE_EQ(relative_error(Values{0, 0}, Values{0, 0}), 0);
}

TEST(RelativeError, IsInfiniteForNaNInfinityAndWrongSizes) {
  EXPECT_EQ(relative_error(Values{1, kNaN}, Values{1, 2}), kInfinity);
  EXPECT_EQ(relative_error(Values{1, kInfinity}, Values{1, 2}), kInfinity);
  EXPECT_EQ(relative_error(Values{kNaN}, Values{kNaN}), kInfinity);
  EXPECT_EQ(relative_error(Values{kNaN}, Values{0}), kInfinity);
  EXPECT_EQ(relative_error(Values{1}, Values{1, 1}), kInfinity);
}

TEST(Within, NaNNeverPasses) {
  EXPECT_TRUE(within(1e-3, 1e-3));
  EXPECT_FALSE(within(1.1e-3, 1e-3));
  EXPECT_FALSE(within(kNaN, 1e-3));
  EXPECT_FALSE(within(0, kNaN));
}

TEST(ReductionLength, IsTheLongestSequenceOrTheMemoryOfTheSlowestState) {
  EXPECT_DOUBLE_EQ(reduction_length(100, 0), 100);
  EXPECT_DOUBLE_EQ(reduction_length(100, 0.5), 100);
  EXPECT_DOUBLE_EQ(reduction_length(100, -std::log(2)), 2);  // 1 / (1 - 1/2)
  EXPECT_DOUBLE_EQ(reduction_length(3, -1e-9), 3);
  EXPECT_DOUBLE_EQ(reduction_length(100, kNaN), 100);
}

TEST(ErrorBound, OfHalfPrecisionOutputs) {
  EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_fwd, Dtype::fp16, "out", 10), 1e-3);
  EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_bwd, Dtype::bf16, "dB", 10), 4e-3);
  EXPECT_DOUBLE_EQ(error_bound(Operator::conv1d_pack_bwd, Dtype::bf16, "dx", 0), 4e-3);
}

TEST(ErrorBound, OfSinglePrecisionGrowsWithTheReduction) {
  EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_fwd, Dtype::fp32, "out", 100), 1e-5);
  EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_fwd, Dtype::fp32, "out", 16777216 * 1e-4), 1e-4);
  EXPECT_DOUBLE_EQ(error_bound(Operator::conv1d_pack_bwd, Dtype::fp32, "dweight", 0), 1e-5);
}

TEST(ErrorBound, OfParametersAndScanStatesIsTighterThanTheDtype) {
  for (const char* tensor : {"dA", "dD", "ddelta_bias", "final_states", "dinitial_states"}) {
    EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_bwd, Dtype::bf16, tensor, 10), 1e-4) << tensor;
    EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_bwd, Dtype::fp32, tensor, 10), 1e-5) << tensor;
    EXPECT_DOUBLE_EQ(error_bound(Operator::ssm_pack_bwd, Dtype::fp16, tensor, 16777216 * 1e-2), 1e-2) << tensor;
  }
  EXPECT_DOUBLE_EQ(error_bound(Operator::conv1d_pack_bwd, Dtype::fp16, "dbias", 0), 1e-4);
}

TEST(ErrorBound, OfConvolutionStatesIsThatOfTheirDtype) {
  EXPECT_DOUBLE_EQ(error_bound(Operator::conv1d_pack_fwd, Dtype::bf16, "final_states", 0), 4e-3);
  EXPECT_DOUBLE_EQ(error_bound(Operator::conv1d_pack_bwd, Dtype::fp16, "dinitial_states", 0), 1e-3);
}

}  // namespace
}  // namespace packjit::checking
