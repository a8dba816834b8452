#include "packing/statistics.hpp"

#include <gtest/gtest.h>

#include "cli/lengths_file.hpp"

namespace packjit {
namespace {

TEST(Statistics, OfASmallPlan) {
  const std::vector<Document> documents{{25, {}}, {3, {}}, {4, {}}};
  PackOptions options;
  options.pack_length = 10;
  // Rows: 10 | 10 | 5 3 | 4.
  const PackStatistics found = statistics_of(plan_next_fit(documents, options), documents);
  EXPECT_EQ(found.documents, 3);
  EXPECT_EQ(found.documents_cut, 1);
  EXPECT_EQ(found.pieces, 5);
  EXPECT_EQ(found.rows, 4);
  EXPECT_EQ(found.calls, 4);
  EXPECT_EQ(found.tokens, 32);
  EXPECT_DOUBLE_EQ(found.fill_rate, 0.8);
  EXPECT_EQ(found.padding(), 8);
  EXPECT_EQ(found.padded_to_pack_length, 30 + 10 + 10);
  EXPECT_EQ(found.padded_to_longest, 75);
  EXPECT_EQ(found.avoided_to_pack_length(), 10);
  EXPECT_EQ(found.avoided_to_longest(), 35);
  EXPECT_EQ(found.largest_order_drift, 0);
  EXPECT_DOUBLE_EQ(found.mean_handover_distance, 1);
}

// 12 tokens cut at 4 and 8 are 3 pieces (the last 4 tokens need no cut); in whole rows of 10 they would be 2.
TEST(Statistics, PaddingIsComparedWithThePiecesOfThePlan) {
  const std::vector<Document> documents{{12, {4, 8, 11}}};
  PackOptions options;
  options.pack_length = 10;
  options.cut = 4;
  for (const PackMethod& method : pack_methods()) {
    const PackStatistics found = statistics_of(method.plan(documents, options), documents);
    EXPECT_EQ(found.pieces, 3) << method.name;
    EXPECT_EQ(found.padded_tokens, 30) << method.name;
    EXPECT_EQ(found.padded_to_pack_length, 30) << method.name;
    EXPECT_EQ(found.avoided_to_pack_length(), 0) << method.name;
  }
}

TEST(Statistics, ADocumentJustLongerThanARowAvoidsNothingAgainstTheLongest) {
  const std::vector<Document> documents{{12, {}}};
  PackOptions options;
  options.pack_length = 10;
  const PackStatistics found = statistics_of(plan_local_greedy(documents, options), documents);
  EXPECT_EQ(found.padded_tokens, 20);
  EXPECT_EQ(found.padded_to_longest, 12);
  EXPECT_EQ(found.avoided_to_longest(), 0);
  EXPECT_EQ(found.avoided_to_pack_length(), 0);
}

TEST(Statistics, DriftCountsPlacesThatDocumentsMoved) {
  const std::vector<Document> documents{{8, {}}, {8, {}}, {8, {}}};
  PackPlan plan;
  plan.options.pack_length = 8;
  plan.documents = 3;
  for (const std::int64_t document : {2, 0, 1}) {
    plan.calls.push_back({{Row{{{document, 0, 8, false, false}}}}});
  }
  const PackStatistics found = statistics_of(plan, documents);
  EXPECT_DOUBLE_EQ(found.mean_order_drift, 4.0 / 3);  // 2 + 1 + 1 places
  EXPECT_EQ(found.largest_order_drift, 2);
}

// The numbers were computed apart from this code, by next fit over pieces of at most 4,096 tokens:
//   awk -v N=4096 '{n=$1; t+=n; if(n>N)cut++; while(n>0){p=n<N?n:N; pc++; if(r==0||f<p){r++;f=N} f-=p; n-=p}
//     pad+=int(($1+N-1)/N)*N; if($1>m)m=$1} END{print NR,t,pc,cut,r,pad,m*NR}' bench/data/mixed_lengths.txt
TEST(Statistics, OfRealLengths) {
  const std::vector<Document> documents = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  PackOptions options;
  options.pack_length = 4096;
  const PackStatistics arrival = statistics_of(plan_next_fit(documents, options), documents);
  EXPECT_EQ(arrival.documents, 8848);
  EXPECT_EQ(arrival.tokens, 6503676);
  EXPECT_EQ(arrival.pieces, 9556);
  EXPECT_EQ(arrival.documents_cut, 471);
  EXPECT_EQ(arrival.rows, 1932);
  EXPECT_EQ(arrival.padded_to_pack_length, 39141376);
  EXPECT_EQ(arrival.padded_to_longest, 312891824);

  const PackStatistics sorted = statistics_of(plan_local_greedy(documents, options), documents);
  EXPECT_EQ(sorted.tokens, 6503676);
  EXPECT_EQ(sorted.pieces, 9556);
  EXPECT_GE(sorted.rows, 1588);  // 6,503,676 / 4,096, rounded up: no plan has fewer
  EXPECT_GT(sorted.fill_rate, 0.995);
  EXPECT_LT(sorted.largest_order_drift, 1024);
  EXPECT_LT(sorted.mean_handover_distance, 2);
}

}  // namespace
}  // namespace packjit
