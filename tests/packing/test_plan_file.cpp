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
TEST(PlanFile, Version1Minor1Golden) { EXPECT_EQ(plan_json(small_plan()), contents(PACKJIT_GOLDEN "/plan_v1_1.json")); }

/// What docs/plan_format.md says of version 1, and nothing that came later.
PackPlan read_version_1(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["format"], "packjit-plan");
  EXPECT_EQ(json["version"], 1);
  PackPlan plan;
  plan.method = json["method"];
  plan.options.pack_length = json["pack_length"];
  plan.options.cut = json["cut"];
  plan.options.rows_per_call = json["rows_per_call"];
  plan.options.window = json["window"];
  plan.options.open_packs = json["open_packs"];
  plan.options.seed = json["seed"];
  plan.documents = json["documents"];
  plan.tokens = json["tokens"];
  for (const auto& call : json["calls"]) {
    plan.calls.emplace_back();
    for (const auto& row : call["rows"]) {
      plan.calls.back().rows.emplace_back();
      for (const auto& piece : row["pieces"]) {
        plan.calls.back().rows.back().pieces.push_back(
            {piece["document"], piece["offset"], piece["length"], piece["continues"], piece["more"]});
      }
    }
  }
  return plan;
}

TEST(PlanFile, FilesOfBothMinorVersionsSayTheSame) {
  EXPECT_EQ(read_version_1(contents(PACKJIT_GOLDEN "/plan_v1.json")), small_plan());
  EXPECT_EQ(read_version_1(contents(PACKJIT_GOLDEN "/plan_v1_1.json")), small_plan());
}

TEST(PlanFile, IsJson) {
  const auto plan = nlohmann::json::parse(plan_json(small_plan()));
  EXPECT_EQ(plan["format"], "packjit-plan");
  EXPECT_EQ(plan["version"], 1);
  EXPECT_EQ(plan["calls"][1]["rows"][0]["pieces"][0]["state_from"]["call"], 0);
}

}  // namespace
}  // namespace packjit
