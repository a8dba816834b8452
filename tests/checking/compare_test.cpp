#include "checking/compare.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "checking/report.hpp"

namespace packjit::checking {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Sequences of 2 and 1 tokens and a padding token, one channel.
Case two_sequences(Dtype dtype = Dtype::fp32) {
  Case c;
  c.name = "two";
  c.op = Operator::conv1d_pack_fwd;
  c.dtype = dtype;
  c.dim = 1;
  c.rows = {row_of({2, 1, -1})};
  return c;
}
HostTensors out(std::vector<double> values, ElementType type = ElementType::fp32) {
  HostTensors tensors;
  tensors["out"] = HostTensor::from_double(type, {1, 4, 1}, values);
  return tensors;
}
Result compare(const std::vector<double>& values, ElementType type = ElementType::fp32) {
  Reference reference;
  reference.outputs["out"] = {3000, 4000, 1, 0};
  const std::vector<Result> results =
      compare_with_reference(CheckKind::oracle, two_sequences(), out(values, type), reference);
  EXPECT_EQ(results.size(), 1u);
  return results.at(0);
}

TEST(CompareWithReference, ReportsTheWorstSequence) {
  EXPECT_TRUE(compare({3000, 4000, 1, 0}).pass());
  // 2^-7 off in a sequence of size 1: 1.6e-6 of the whole tensor, which would pass.
  const Result result = compare({3000, 4000, 1.0078125, 0});
  EXPECT_FALSE(result.pass());
  EXPECT_DOUBLE_EQ(result.error, 0.0078125);
  EXPECT_EQ(result.where, "sequence 1 (1 tokens)");
  EXPECT_DOUBLE_EQ(result.bound, 1e-5);
}

TEST(CompareWithReference, NaNNeverPasses) {
  EXPECT_FALSE(compare({3000, std::numeric_limits<double>::quiet_NaN(), 1, 0}).pass());
  EXPECT_FALSE(compare({3000, kInfinity, 1, 0}).pass());
}

TEST(CompareWithReference, PaddingMustBeZero) {
  const Result result = compare({3000, 4000, 1, 1e-30});
  EXPECT_FALSE(result.pass());
  EXPECT_EQ(result.where, "padding");
}

TEST(CompareWithReference, AnotherDtypeOrAMissingTensorFails) {
  EXPECT_FALSE(compare({3000, 4000, 1, 0}, ElementType::bf16).pass());
  Reference reference;
  reference.outputs["final_states"] = {1};
  EXPECT_FALSE(compare_with_reference(CheckKind::oracle, two_sequences(), {}, reference).at(0).pass());
}

TEST(CompareBits, SeesTheSignOfZeroAndSkipsTheChangedSequence) {
  const Case c = two_sequences();
  EXPECT_TRUE(compare_bits(CheckKind::repeat, c, out({1, 2, 3, 0}), out({1, 2, 3, 0})).at(0).pass());
  const Result result = compare_bits(CheckKind::repeat, c, out({1, 2, 3, 0}), out({1, 5, 3, -0.0})).at(0);
  EXPECT_FALSE(result.pass());
  EXPECT_EQ(result.error, 2);
  EXPECT_TRUE(compare_bits(CheckKind::isolation, c, out({1, 2, 3, 0}), out({8, 9, 3, 0}), 0).at(0).pass());
  EXPECT_FALSE(compare_bits(CheckKind::isolation, c, out({1, 2, 3, 0}), out({8, 9, 3, 0}), 1).at(0).pass());
}

TEST(Report, NamesTheWorstFailure) {
  Result fine, bad, worse;
  fine.bound = bad.bound = worse.bound = 1e-3;
  fine.error = 1e-4;
  bad.error = 2e-3;
  worse.error = 3e-3;
  worse.tensor = "dB";
  worse.case_name = "from\x1b[2J\na file";
  Report report;
  report.add({fine});
  EXPECT_TRUE(report.pass());
  EXPECT_EQ(report.worst_failure(), nullptr);
  report.add({bad, worse});
  EXPECT_FALSE(report.pass());
  ASSERT_NE(report.worst_failure(), nullptr);
  EXPECT_EQ(report.worst_failure()->tensor, "dB");
  EXPECT_NE(report.table().find("FAILED"), std::string::npos);
  for (const std::string& text : {report.table(), describe(worse)}) {
    EXPECT_NE(text.find("from\\x1b[2J\\x0aa file"), std::string::npos) << text;
  }
  Result nan;
  nan.bound = 1;
  nan.error = std::numeric_limits<double>::quiet_NaN();
  nan.tensor = "dC";
  report.add({nan});
  EXPECT_EQ(report.worst_failure()->tensor, "dC");
}

}  // namespace
}  // namespace packjit::checking
