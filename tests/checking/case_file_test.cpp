#include "checking/case_file.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace packjit::checking {
namespace {

TEST(CaseFile, ReadsEveryField) {
  const Case c =
      parse_case(R"({"op": "ssm_pack_bwd", "name": "n", "dtype": "bf16", "dim": 24, "d_state": 8, "groups": 2,
      "rows": [[5, 2, -3], [10]], "z": false, "initial_states": true, "layout": "channel-major", "seed": 7,
      "config": {"tile_tokens": 16}})");
  EXPECT_EQ(c.op, Operator::ssm_pack_bwd);
  EXPECT_EQ(c.dtype, Dtype::bf16);
  EXPECT_EQ(c.dim, 24);
  EXPECT_EQ(c.groups, 2);
  EXPECT_FALSE(c.z);
  EXPECT_TRUE(c.softplus);
  EXPECT_TRUE(c.initial_states);
  EXPECT_FALSE(c.final_states);
  EXPECT_EQ(c.layout, Layout::channel_major);
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_EQ(c.rows[0], (Row{{5, false}, {2, false}, {3, true}}));
  EXPECT_EQ(c.seed, 7u);
  ASSERT_EQ(c.config.size(), 1u);
  EXPECT_EQ(c.config[0].second, "16");
  EXPECT_EQ(case_json(parse_case(case_json(c).dump())), case_json(c));
}

TEST(CaseFile, RefusesWhatItDoesNotKnow) {
  for (const char* text :
       {"", "[]", "{", R"({"op": "ssm_pack_fwd"})", R"({"op": "nothing", "rows": [[1]]})",
        R"({"op": "ssm_pack_fwd", "rows": [[0]]})", R"({"op": "ssm_pack_fwd", "rows": [[1], [2]]})",
        R"({"op": "ssm_pack_fwd", "rows": [[1]], "bias": true})", R"({"op": "ssm_pack_fwd", "rows": [[1]], "dim": 0})",
        R"({"op": "ssm_pack_fwd", "rows": [[1]], "dim": 1.5})", R"({"op": "ssm_pack_fwd", "rows": [[1]], "extra": 1})",
        R"({"op": "ssm_pack_fwd", "rows": [[1]], "dtype": "fp64"})", R"({"op": "ssm_pack_fwd", "rows": [["1"]]})",
        R"({"op": "ssm_pack_fwd", "rows": [[1]], "groups": 3})", R"({"op": "ssm_pack_fwd", "rows": [[9999999999999]]})",
        R"({"op": "ssm_pack_fwd", "rows": [[1]], "config": {"nothing": 1}})",
        R"({"op": "ssm_pack_fwd", "rows": [[16777216]], "dim": 1048576})",
        R"({"op": "conv1d_pack_fwd", "rows": [[1]], "conv_width": 17})"}) {
    EXPECT_THROW((void)parse_case(text), std::invalid_argument) << text;
  }
}

TEST(CaseFile, NamesTheFieldAndWhatWasFound) {
  try {
    (void)parse_case(R"({"op": "conv1d_pack_fwd", "rows": [[1]], "conv_width": 17})");
    FAIL();
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    for (const char* part : {"conv_width", "17", "16"}) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace packjit::checking
