#include "database/shipped.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

// This program embeds the golden file twice, in the place of what the library comes with.
namespace packjit::test {
namespace {

TEST(ShippedDatabases, AreWhatTheirDocumentsSay) {
  std::ifstream file(std::filesystem::path(PACKJIT_GOLDEN) / "database_v1.json", std::ios::binary);
  Database golden = parse_database(std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  ASSERT_EQ(golden.entries.size(), 2U);
  // What is not embedded: it plays no part in look-ups.
  golden.failed.clear();
  golden.unknown = nlohmann::json::object();
  for (Entry& entry : golden.entries) entry.unknown = nlohmann::json::object();
  golden.minor = kDatabaseMinor;
  ASSERT_EQ(shipped_databases().size(), 2U);
  for (const Database& shipped : shipped_databases()) {
    EXPECT_EQ(write_database(shipped), write_database(golden));
    EXPECT_EQ(shipped.origin, "the database shipped with packjit");
  }
}

}  // namespace
}  // namespace packjit::test
