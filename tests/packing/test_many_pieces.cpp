// Documents cut into many pieces, where rows are short of other documents to hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cli/lengths_file.hpp"
#include "packing/packing.hpp"
#include "packing/room_by_row.hpp"
#include "packing/statistics.hpp"

namespace packjit {
namespace {

std::int64_t rows(const PackPlan& plan, const std::vector<Document>& documents) {
  return statistics_of(plan, documents).rows;
}

PackOptions cut_to(std::int64_t cut, std::int64_t pack_length) {
  PackOptions options;
  options.pack_length = pack_length;
  options.cut = cut;
  return options;
}

// 12 pieces need 12 rows, one after the other; 108 tokens remain of each row for the 12 documents of 108 tokens, each
// of 9 pieces or fewer to a row. All 1,440 tokens fit those 12 rows of 120, and no plan has fewer.
TEST(ManyPieces, OtherDocumentsFillTheRowsThatALongOneNeeds) {
  std::vector<Document> documents(13);
  for (Document& document : documents) document.length = 108;
  documents[6].length = 144;
  EXPECT_EQ(rows(plan_local_greedy(documents, cut_to(12, 120)), documents), 12);
}

// Each window of 4 holds a document of 40 pieces and 6 more tokens. The last one's pieces need 40 rows; each window
// before it may open one more. A window for itself takes 40 rows, so without waiting it would be 160.
TEST(ManyPieces, TheRestOfALongDocumentWaitsForTheNextWindow) {
  std::vector<Document> documents;
  for (int window = 0; window < 4; ++window) {
    for (const std::int64_t length : {40, 2, 2, 2}) documents.push_back({length, {}});
  }
  PackOptions options = cut_to(1, 8);
  options.window = 4;
  EXPECT_GE(rows(plan_local_greedy(documents, options), documents), 40);
  EXPECT_LE(rows(plan_local_greedy(documents, options), documents), 43);
}

// 6,503,676 tokens need 1,588 rows of 4,096 at least.
TEST(ManyPieces, RealLengthsCutSmallStayFull) {
  const std::vector<Document> documents = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  for (const std::int64_t cut : {2048, 1024, 512, 128}) {
    const std::int64_t found = rows(plan_local_greedy(documents, cut_to(cut, 4096)), documents);
    EXPECT_GE(found, 1588) << cut;
    EXPECT_LE(found, rows(plan_next_fit(documents, cut_to(cut, 4096)), documents)) << cut;
    // 99 % full; 90 % with 128, since the last 300 documents hold one that needs 201 rows.
    EXPECT_LE(found, cut >= 512 ? 1604 : 1788) << cut;
  }
}

TEST(RoomByRow, FindsTheFirstRowAfterAnotherWithRoom) {
  RoomByRow room(10);
  EXPECT_EQ(room.first_after(0, 1), std::nullopt);
  room.set(10, 5);
  room.set(14, 7);
  room.set(12, 6);
  EXPECT_EQ(room.first_after(0, 5), 10);
  EXPECT_EQ(room.first_after(0, 6), 12);
  EXPECT_EQ(room.first_after(0, 7), 14);
  EXPECT_EQ(room.first_after(0, 8), std::nullopt);
  EXPECT_EQ(room.first_after(10, 1), 12);
  EXPECT_EQ(room.first_after(12, 6), 14);
  EXPECT_EQ(room.first_after(14, 1), std::nullopt);
  EXPECT_EQ(room.first_after(1000, 1), std::nullopt);
  EXPECT_EQ(room.room(12), 6);
  room.set(12, 0);
  EXPECT_EQ(room.first_after(10, 1), 14);
}

}  // namespace
}  // namespace packjit
