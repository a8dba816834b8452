#include "packing/cutting.hpp"

#include <gtest/gtest.h>

namespace packjit {
namespace {

using Ends = std::vector<std::int64_t>;

Ends ends(const Document& document, std::int64_t cut, std::int64_t slack, std::int64_t min_piece) {
  PackOptions options;
  options.cut = cut;
  options.cut_slack = slack;
  options.min_piece = min_piece;
  Ends result;
  for (std::int64_t offset = 0; offset < document.length; result.push_back(offset)) {
    offset = piece_end(document, offset, options);
  }
  return result;
}

TEST(Cutting, ABreakCountsOnlyWithinTheSlack) {
  const Document document{15, {6}};
  EXPECT_EQ(ends(document, 10, kMaximumLength, 1), (Ends{6, 15}));
  EXPECT_EQ(ends(document, 10, 4, 1), (Ends{6, 15}));
  EXPECT_EQ(ends(document, 10, 3, 1), (Ends{10, 15}));
  EXPECT_EQ(ends({15, {10}}, 10, 0, 1), (Ends{10, 15}));
}

TEST(Cutting, AShortTailMakesTheCutEarlier) {
  EXPECT_EQ(ends({12, {}}, 10, kMaximumLength, 1), (Ends{10, 12}));
  EXPECT_EQ(ends({12, {}}, 10, kMaximumLength, 4), (Ends{8, 12}));
  EXPECT_EQ(ends({21, {}}, 10, kMaximumLength, 5), (Ends{10, 16, 21}));
  EXPECT_EQ(ends({11, {}}, 10, kMaximumLength, 5), (Ends{6, 11}));
}

TEST(Cutting, ABreakThatLeavesTooShortAPieceIsPassed) {
  EXPECT_EQ(ends({12, {3}}, 10, kMaximumLength, 4), (Ends{8, 12}));  // 3 tokens before it
  EXPECT_EQ(ends({12, {9}}, 10, kMaximumLength, 4), (Ends{8, 12}));  // 3 tokens after it
  EXPECT_EQ(ends({12, {3, 6, 9}}, 10, kMaximumLength, 4), (Ends{6, 12}));
}

TEST(Cutting, DocumentsThatNeedNoCutMayBeShort) { EXPECT_EQ(ends({2, {1}}, 10, 10, 5), (Ends{2})); }

TEST(Cutting, TheMostPiecesAreTheShortest) {
  const std::vector<Document> documents = {{9, {}}, {2, {}}, {4, {}}, {1, {}}, {14, {}}};  // 14 is 10 and 4
  const PackOptions options{.pack_length = 10, .cut = 10};
  EXPECT_EQ(most_pieces_in(0, documents, options), 0);
  EXPECT_EQ(most_pieces_in(1, documents, options), 1);
  EXPECT_EQ(most_pieces_in(6, documents, options), 2);
  EXPECT_EQ(most_pieces_in(7, documents, options), 3);
  EXPECT_EQ(most_pieces_in(11, documents, options), 4);
  EXPECT_EQ(most_pieces_in(29, documents, options), 5);
  EXPECT_EQ(most_pieces_in(1000, documents, options), 6);
}

}  // namespace
}  // namespace packjit
