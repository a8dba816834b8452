#include "database/shipped.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

// This program embeds the golden file twice, in the place of what the library comes with.
namespace packjit::test {
namespace {

TEST(ShippedTexts, AreTheFilesByteForByte) {
  std::ifstream file(std::filesystem::path(PACKJIT_GOLDEN) / "database_v1.json", std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_GT(golden.size(), 2000U);
  ASSERT_EQ(shipped_texts().size(), 2U);
  EXPECT_EQ(shipped_texts()[0], golden);
  EXPECT_EQ(shipped_texts()[1], golden);
  ASSERT_EQ(shipped_databases().size(), 2U);
  EXPECT_EQ(shipped_databases()[1].entries.size(), 2U);
  EXPECT_EQ(shipped_databases()[1].origin, "the database shipped with packjit");
}

}  // namespace
}  // namespace packjit::test
