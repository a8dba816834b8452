#include "database/bucket.hpp"

#include <gtest/gtest.h>

#include <set>

namespace packjit {
namespace {

TEST(Bucket, RoundsDimAndTokensUpForAConvolution) {
  EXPECT_EQ(bucket_of(Operator::conv1d_pack_fwd, {.tokens = 4096, .sequences = 6, .dim = 1536, .longest = 2048}),
            (Bucket{1536, 4096, 0, 0}));
  EXPECT_EQ(bucket_of(Operator::conv1d_pack_bwd, {.tokens = 4097, .sequences = 6, .dim = 4097, .longest = 2048}),
            (Bucket{5120, 6144, 0, 0}));
  EXPECT_EQ(bucket_of(Operator::conv1d_pack_fwd, {.tokens = 1, .sequences = 1, .dim = 1, .longest = 1}),
            (Bucket{32, 1024, 0, 0}));
  EXPECT_EQ(bucket_of(Operator::conv1d_pack_fwd, {.tokens = 1 << 20, .sequences = 1, .dim = 1 << 20, .longest = 1}),
            (Bucket{131'072, 262'144, 0, 0}));
}

TEST(Bucket, SeesHowAScansWorkIsSharedOut) {
  const Operator op = Operator::ssm_pack_fwd;
  EXPECT_EQ(bucket_of(op, {.tokens = 32'768, .sequences = 54, .dim = 4096, .longest = 2048}),
            (Bucket{4096, 32'768, 16, 512}));
  EXPECT_EQ(bucket_of(op, {.tokens = 32'768, .sequences = 1, .dim = 4096, .longest = 32'768}),
            (Bucket{4096, 32'768, 1, 512}));
  EXPECT_EQ(bucket_of(op, {.tokens = 16'382, .sequences = 50, .dim = 3072, .longest = 2048}),
            (Bucket{3072, 16'384, 4, 512}));
  EXPECT_EQ(bucket_of(op, {.tokens = 65'536, .sequences = 4096, .dim = 1024, .longest = 16}),
            (Bucket{1024, 32'768, 64, 16}));
  // What a caller says too much of: more sequences than tokens, a longest of more than all.
  EXPECT_EQ(bucket_of(op, {.tokens = 4096, .sequences = 1 << 20, .dim = 64, .longest = 1 << 20}),
            (Bucket{64, 4096, 1, 16}));
}

TEST(Bucket, TheRepresentativeOfABucketFallsIntoIt) {
  for (const Operator op : kOperators) {
    for (const std::int64_t dim : {1, 100, 1536, 4096, 5120, 200'000}) {
      const std::vector<Bucket> buckets = buckets_to_tune(op, dim);
      EXPECT_EQ(buckets.size(), is_scan(op) ? 20U : 17U);
      EXPECT_EQ(std::set<Bucket>(buckets.begin(), buckets.end()).size(), buckets.size());
      for (const Bucket& bucket : buckets) {
        const Workload work = representative(op, bucket);
        EXPECT_EQ(bucket_of(op, work), bucket) << bucket.tokens << " " << bucket.spread << " " << bucket.mean_length;
        EXPECT_LE(work.longest + work.sequences - 1, work.tokens);
        EXPECT_GE(work.longest * work.sequences, work.tokens) << "sequences are too short to fill the tokens";
      }
    }
  }
}

TEST(Bucket, IsFarFromAnotherRangeOfShapes) {
  const Operator conv = Operator::conv1d_pack_fwd, scan = Operator::ssm_pack_bwd;
  EXPECT_EQ(distance(conv, {4096, 4096}, {4096, 4096}), 0);
  EXPECT_EQ(distance(conv, {4096, 4096}, {2048, 2048}), 2);
  EXPECT_FALSE(distance(conv, {4096, 4096}, {1792, 4096}));
  EXPECT_FALSE(distance(conv, {4096, 4096}, {4096, 12'288}));
  EXPECT_EQ(distance(scan, {4096, 32'768, 16, 512}, {4096, 4096, 4, 16}), 6);
  EXPECT_FALSE(distance(scan, {4096, 32'768, 16, 512}, {4096, 512, 16, 512}));
  EXPECT_FALSE(distance(scan, {4096, 32'768, 64, 512}, {4096, 32'768, 4, 512}));
}

}  // namespace
}  // namespace packjit
