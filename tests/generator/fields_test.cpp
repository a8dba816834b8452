#include "generator/fields.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "generator/operators.hpp"
#include "tests/message_of.hpp"

namespace packjit {
namespace {

using test::message_of;

TEST(Fields, TheDefaultSpecIsThatOfTheDesign) {
  EXPECT_EQ(Spec(Operator::ssm_pack_fwd).values.text(),
            "dtype=bf16 d_state=16 softplus=on D=on z=on delta_bias=on groups=one initial_states=off "
            "final_states=off checkpoints=off layout=token-major");
  EXPECT_EQ(Spec(Operator::conv1d_pack_bwd).values.text(),
            "dtype=bf16 conv_width=4 bias=on activation=silu initial_states=off final_states=off layout=token-major "
            "map=positions");
}

TEST(Fields, LimitsAreThoseOfTheDesign) {
  Spec scan(Operator::ssm_pack_bwd);
  scan.values.set("d_state", 512);
  EXPECT_EQ(message_of([&] { scan.values.set("d_state", 513); }),
            "d_state = 513 is out of range: expected an integer from 1 to 512");
  EXPECT_EQ(scan.values["d_state"], 512);
  Spec conv(Operator::conv1d_pack_fwd);
  EXPECT_EQ(message_of([&] { conv.values.set_text("conv_width", "17"); }),
            "conv_width = 17 is out of range: expected an integer from 1 to 16");
  EXPECT_EQ(message_of([&] { conv.values.set_text("conv_width", "4x"); }),
            "conv_width = '4x' is not understood: expected an integer from 1 to 16");
  EXPECT_EQ(message_of([&] { conv.values.set_text("dtype", "fp64"); }),
            "dtype = 'fp64' is not understood: expected one of fp32, fp16, bf16");
}

TEST(Fields, AFieldThatAnOperatorDoesNotHaveIsRefused) {
  Spec conv(Operator::conv1d_pack_fwd);
  EXPECT_NE(message_of([&] { conv.values.set("softplus", 1); }).find("there is no field 'softplus'"),
            std::string::npos);
  Config forward(Operator::ssm_pack_fwd);
  EXPECT_NE(message_of([&] { forward.values.set("step_tokens", 4); }).find("there is no field 'step_tokens'"),
            std::string::npos);
}

TEST(Fields, PairsThatCannotWorkAreRefused) {
  Spec spec(Operator::ssm_pack_fwd);
  Config config(Operator::ssm_pack_fwd);
  spec.values.set("d_state", 64);
  config.values.set("lanes", 2);  // 32 states a thread
  EXPECT_NE(message_of([&] { check_pair(spec, config); }).find("at most 16 fit"), std::string::npos);
  config.values.set("lanes", 3);
  EXPECT_EQ(message_of([&] { check_pair(spec, config); }), "lanes = 3 must be a power of two");
  EXPECT_NE(message_of([&] { check_pair(spec, Config(Operator::ssm_pack_bwd)); }).find("ssm_pack_bwd"),
            std::string::npos);
  spec.values.set_text("dtype", "fp32");
  Config wide(Operator::ssm_pack_fwd);
  wide.values.set("lanes", 4);
  wide.values.set("vector", 8);
  EXPECT_NE(message_of([&] { check_pair(spec, wide); }).find("an access of 32 bytes"), std::string::npos);
}

}  // namespace
}  // namespace packjit
