#include "tuning/targets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/message_of.hpp"

namespace packjit {
namespace {

TEST(Targets, ABatchIsAsTheWorkloadSays) {
  for (const Operator op : kOperators) {
    for (const std::int64_t dim : {1536, 4096}) {
      for (const Bucket& bucket : buckets_to_tune(op, dim)) {
        const Workload work = representative(op, bucket);
        const BatchShape batch = batch_of(work);
        ASSERT_EQ(batch.rows.size(), 1U);
        const std::vector<std::int64_t>& lengths = batch.rows[0];
        EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), work.tokens);
        EXPECT_EQ(std::ranges::max(lengths), work.longest);
        EXPECT_GE(std::ranges::min(lengths), 1);
        EXPECT_EQ(static_cast<std::int64_t>(lengths.size()), work.sequences);
        EXPECT_EQ(batch.seqlen, work.tokens) << "no padding";
        EXPECT_EQ(workload_of(batch, dim), work);
        EXPECT_EQ(bucket_of(op, workload_of(batch, dim)), bucket);
        EXPECT_EQ(batch_of(work).rows, batch.rows);
      }
    }
  }
}

TEST(Targets, LengthsAreSpreadLikeDocuments) {
  std::vector<std::int64_t> lengths = batch_of({.tokens = 32'768, .sequences = 48, .dim = 1, .longest = 2048}).rows[0];
  EXPECT_FALSE(std::ranges::is_sorted(lengths)) << "neither ascending";
  EXPECT_FALSE(std::ranges::is_sorted(lengths, std::ranges::greater{})) << "nor descending";
  std::ranges::sort(lengths);
  EXPECT_LT(lengths[0], 200);
  EXPECT_LT(lengths[24], 683) << "the median of such lengths is below their mean";
  EXPECT_GT(lengths[24], 300);
}

TEST(Targets, RefusesAWorkloadThatNoBatchHas) {
  EXPECT_EQ(test::message_of([] { (void)batch_of({.tokens = 100, .sequences = 3, .dim = 1, .longest = 20}); }),
            "making a batch: 3 sequences of 1 to 20 tokens, one of them the longest, cannot be 100 tokens");
  EXPECT_NE(test::message_of([] { (void)batch_of({.tokens = 100, .sequences = 3, .dim = 1, .longest = 99}); }),
            "nothing was thrown");
  EXPECT_EQ(batch_of({.tokens = 100, .sequences = 3, .dim = 1, .longest = 98}).rows[0].size(), 3U);
  EXPECT_EQ(batch_of({.tokens = 60, .sequences = 3, .dim = 1, .longest = 20}).rows[0],
            (std::vector<std::int64_t>{20, 20, 20}));
}

TEST(Targets, WhatIsUsedMostComesFirst) {
  const std::int64_t dims[] = {1536, 4096};
  const std::vector<TuningTarget> targets = targets_of_buckets(kOperators, dims, {});
  // Two convolutions with 17 buckets, two scans with 20 and two Specs, for each dim.
  ASSERT_EQ(targets.size(), 2U * (2 * 17 + 2 * 2 * 20));
  // 32,768 tokens: of each dim, two convolutions and four Specs of scans.
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(targets[i].bucket.tokens, 32'768) << i;
  std::int64_t rank = 0;
  for (const TuningTarget& target : targets) {
    constexpr std::int64_t usual[] = {32'768, 16'384, 4096};
    const std::int64_t here = std::ranges::find(usual, target.bucket.tokens) - std::begin(usual);
    EXPECT_GE(here, rank);
    rank = here;
  }
  const auto first_scan = std::ranges::find_if(targets, [](const TuningTarget& t) { return is_scan(t.spec.op); });
  EXPECT_EQ(first_scan->bucket, (Bucket{1536, 32'768, 16, 512}));
}

TEST(Targets, SpecsAreThoseOfTraining) {
  EXPECT_EQ(specs_to_tune(Operator::conv1d_pack_fwd, {}).size(), 1U);
  const std::vector<Spec> scans = specs_to_tune(Operator::ssm_pack_bwd, {.d_state = 64, .dtype = "fp16"});
  ASSERT_EQ(scans.size(), 2U);
  EXPECT_EQ(scans[0].values["checkpoints"], 0);
  EXPECT_EQ(scans[1].values["checkpoints"], 1);
  EXPECT_EQ(scans[1].values["d_state"], 64);
  EXPECT_EQ(scans[1].values.text("dtype"), "fp16");
}

TEST(Targets, ARealMixKeepsItsLengths) {
  const BatchShape batch{"lengths", 1000, {{400, 600}, {1000}, {300}}};
  const Operator ops[] = {Operator::ssm_pack_fwd, Operator::conv1d_pack_bwd};
  const std::int64_t dims[] = {100, 4096};
  const std::vector<TuningTarget> targets = targets_of_batch(batch, ops, dims, {});
  ASSERT_EQ(targets.size(), 6U);
  EXPECT_EQ(targets[0].batch.rows, batch.rows);
  EXPECT_EQ(targets[0].work, (Workload{3000, 4, 100, 1000}));
  EXPECT_EQ(targets[0].bucket, (Bucket{112, 4096, 4, 512}));
  EXPECT_EQ(targets[5].bucket, (Bucket{4096, 3072, 0, 0}));
}

}  // namespace
}  // namespace packjit
