#include "packing/loss_weights.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

// Document 0 has 4 tokens, 3 of them here and 1 in a later call; document 1 has 2.
const Call kCall{{Row{{{0, 0, 3, false, true}, {1, 0, 2, false, false}}}}};
const Call kLaterCall{{Row{{{0, 3, 1, true, false}}}}};
using Weights = std::vector<float>;

TEST(LossWeights, EveryTokenAlike) {
  const auto given = documents({4, 2});
  EXPECT_EQ(loss_weights(kCall, 6, given, LossUnit::token, LastToken::counts), (Weights{1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(loss_weights(kCall, 6, given, LossUnit::token, LastToken::is_dropped), (Weights{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(loss_weights(kLaterCall, 2, given, LossUnit::token, LastToken::is_dropped), (Weights{0, 0}));
}

TEST(LossWeights, EveryDocumentAlike) {
  const auto given = documents({4, 2});
  EXPECT_EQ(loss_weights(kCall, 6, given, LossUnit::document, LastToken::counts),
            (Weights{0.25, 0.25, 0.25, 0.5, 0.5, 0}));
  EXPECT_EQ(loss_weights(kLaterCall, 2, given, LossUnit::document, LastToken::counts), (Weights{0.25, 0}));
  const auto three = documents({5, 2});
  EXPECT_EQ(loss_weights(kCall, 5, three, LossUnit::document, LastToken::is_dropped),
            (Weights{0.25, 0.25, 0.25, 1, 0}));
}

TEST(LossWeights, ADocumentOfOneTokenPredictsNothing) {
  const Call call{{Row{{{0, 0, 1, false, false}}}}};
  EXPECT_EQ(loss_weights(call, 2, documents({1}), LossUnit::document, LastToken::is_dropped), (Weights{0, 0}));
  EXPECT_EQ(loss_weights(call, 2, documents({1}), LossUnit::document, LastToken::counts), (Weights{1, 0}));
}

TEST(LossWeights, ADocumentThatIsNotThereIsRefused) {
  EXPECT_THROW((void)loss_weights(kCall, 6, documents({4}), LossUnit::token, LastToken::counts), std::invalid_argument);
  EXPECT_THROW((void)loss_weights(kCall, 4, documents({4, 2}), LossUnit::token, LastToken::counts),
               std::invalid_argument);
}

}  // namespace
}  // namespace packjit
