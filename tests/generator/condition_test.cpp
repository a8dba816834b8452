#include "generator/condition.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace packjit {
namespace {

long long value(std::string_view text) {
  return evaluate_condition(text, [](std::string_view name) -> long long {
    if (name == "WIDTH") return 4;
    if (name == "OFF") return 0;
    throw std::logic_error("unknown " + std::string(name));
  });
}

TEST(Condition, OperatorsBindAsInC) {
  EXPECT_EQ(value("1 + 2 * 3"), 7);
  EXPECT_EQ(value("(1 + 2) * 3"), 9);
  EXPECT_EQ(value("7 - 2 - 1"), 4);
  EXPECT_EQ(value("17 % 5 / 2"), 1);
  EXPECT_EQ(value("1 < 2 == 1"), 1);
  EXPECT_EQ(value("1 || 0 && 0"), 1);
  EXPECT_EQ(value("!OFF && WIDTH > 1"), 1);
  EXPECT_EQ(value("WIDTH >= 5 || WIDTH != 4"), 0);
  EXPECT_EQ(value("-WIDTH <= -4"), 1);
}

TEST(Condition, EveryNameIsAskedForThoughTheResultIsDecided) {
  std::vector<std::string> asked;
  EXPECT_EQ(evaluate_condition("A || B",
                               [&](std::string_view name) -> long long {
                                 asked.emplace_back(name);
                                 return 1;
                               }),
            1);
  EXPECT_EQ(asked, (std::vector<std::string>{"A", "B"}));
}

TEST(Condition, WhatIsNotAConditionIsRefused) {
  for (const char* text : {"", "1 +", "(1", "1)", "1 2", "4 / OFF", "4 % 0", "$", "NAME"}) {
    EXPECT_THROW(value(text), std::logic_error) << text;
  }
}

}  // namespace
}  // namespace packjit
