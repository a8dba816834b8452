#include "cli/plan_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace packjit {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

PackPlan small_plan() {
  PackOptions options;
  options.pack_length = 10;
  options.rows_per_call = 2;
  return plan_next_fit(std::vector<Document>{{24, {}}, {6, {}}, {10, {}}, {9, {}}}, options);
}

// Written by hand from docs/plan_format.md; a change of it is a new version of the format.
TEST(PlanFile, Version1Golden) { EXPECT_EQ(plan_json(small_plan()), contents(PACKJIT_GOLDEN "/plan_v1.json")); }

TEST(PlanFile, IsJson) {
  const auto plan = nlohmann::json::parse(plan_json(small_plan()));
  EXPECT_EQ(plan["format"], "packjit-plan");
  EXPECT_EQ(plan["version"], 1);
  EXPECT_EQ(plan["calls"][1]["rows"][0]["pieces"][0]["state_from"]["call"], 0);
}

}  // namespace
}  // namespace packjit
