#include "cli/position_file.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace packjit {
namespace {

TEST(PositionFile, IsWrittenAndRead) {
  const StreamPosition position{2, 17, 18446744073709551615u};
  const std::string text = R"({"epoch":2,"step":17,"fingerprint":"18446744073709551615"})";
  EXPECT_EQ(position_json(position), text);
  EXPECT_EQ(parse_position(text), position);
}

TEST(PositionFile, AnythingElseIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"epoch":-1,"step":0,"fingerprint":"1"})", R"({"epoch":1,"step":"0","fingerprint":"1"})",
        R"({"epoch":1,"step":0,"fingerprint":1})", R"({"epoch":1,"step":0,"fingerprint":"1x"})",
        R"({"epoch":1,"step":0,"fingerprint":"99999999999999999999"})"}) {
    EXPECT_THROW((void)parse_position(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace packjit
