#include "tuning/capture.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/message_of.hpp"

namespace packjit {
namespace {

std::string refusal_of(const std::string& line) {
  return test::message_of([&] { (void)parse_capture(line + "\n", "x"); });
}
constexpr const char* kBegin = "cannot read captured shapes from x, line 1: expected ";

std::string golden() {
  std::ifstream file(PACKJIT_GOLDEN "/capture.jsonl", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Capture, TheGoldenFileIsReadAndWrittenAsItWas) {
  const std::vector<CapturedShape> shapes = parse_capture(golden(), "golden");
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_EQ(shapes[0].spec.op, Operator::ssm_pack_bwd);
  EXPECT_EQ(shapes[0].spec.values["checkpoints"], 1);
  EXPECT_EQ(shapes[0].dim, 4096);
  EXPECT_EQ(shapes[0].seqlen, 4096);
  EXPECT_EQ(shapes[0].calls, 48);
  EXPECT_EQ(shapes[0].rows, (std::vector<std::vector<std::int64_t>>{{1500, 2000}, {4096}}));
  EXPECT_EQ(shapes[1].spec.op, Operator::conv1d_pack_fwd);
  EXPECT_EQ(capture_line(shapes[0]) + "\n" + capture_line(shapes[1]) + "\n", golden());
}

TEST(Capture, WhatIsLeftOutHasItsDefault) {
  const CapturedShape shape =
      parse_capture(R"({"op":"ssm_pack_fwd","spec":{"d_state":64,"z":"off"},"dim":8,"rows":[[3,4],[1]],"later":[{}]})"
                    "\r\n",
                    "x")
          .front();
  EXPECT_EQ(shape.seqlen, 7);
  EXPECT_EQ(shape.calls, 1);
  EXPECT_EQ(shape.spec.values["d_state"], 64);
  EXPECT_EQ(shape.spec.values["z"], 0);
  EXPECT_EQ(shape.spec.values["D"], 1);
}

TEST(Capture, ALineThatWasNotWrittenToTheEndIsLeftOut) {
  const std::string line = R"({"op":"conv1d_pack_fwd","spec":{},"dim":8,"rows":[[3]]})";
  EXPECT_EQ(parse_capture(line + "\n" + line.substr(0, 20), "x").size(), 1U);
  EXPECT_EQ(test::message_of([&] { (void)parse_capture(line, "x"); }),
            "cannot read captured shapes from x: expected a JSON object a line, found no whole line");
}

TEST(Capture, OnlyALineWhoseJsonEndsTooEarlyIsAKilledWritersRest) {
  const std::string line = R"({"op":"conv1d_pack_fwd","spec":{"conv_width":4},"dim":40,"rows":[[3],[4]]})";
  for (const char* behind : {" ", "\t", "  \r"}) EXPECT_EQ(parse_capture(line + behind + "\n", "x").size(), 1U);
  for (std::size_t bytes = 1; bytes < line.size(); ++bytes) {
    EXPECT_EQ(parse_capture(line.substr(0, bytes) + "\n" + line + "\n", "x").size(), 1U) << bytes;
  }
  for (const std::string& damaged : {line + "]", line.substr(0, 30) + "}" + line.substr(30), line + line}) {
    EXPECT_EQ(test::message_of([&] {
                (void)parse_capture(damaged + "\n" + line + "\n", "x");
              }).find("cannot read captured shapes from x, line 1: expected a JSON object"),
              0U)
        << damaged;
  }
}

TEST(Capture, WhatAKilledWriterLeftCostsItsOwnRecordOnly) {
  const CapturedShape shape{
      .spec = Spec(Operator::conv1d_pack_fwd), .dim = 8, .seqlen = 5, .rows = {{2, 3}}, .calls = 1};
  const std::string line = capture_line(shape);
  const std::string text = line + "\n" + line.substr(0, line.size() / 2) + "\n" + line + "\n";
  EXPECT_EQ(parse_capture(text, "test"), (std::vector<CapturedShape>{shape, shape}));
}

TEST(Capture, RefusesWhatItDoesNotUnderstand) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([1])", "a JSON object, found a list"},
      {R"({"spec":{},"dim":8,"rows":[[3]]})", "a JSON object with \"op\", found one without it"},
      {R"({"op":"scan","spec":{},"dim":8,"rows":[[3]]})", "there is no operator 'scan'"},
      {R"({"op":"sequence_map","spec":{},"dim":8,"rows":[[3]]})", "there is no operator 'sequence_map'"},
      {R"({"op":7,"spec":{},"dim":8,"rows":[[3]]})", "\"op\" to be a string, found 7"},
      {R"({"op":"ssm_pack_fwd","spec":[],"dim":8,"rows":[[3]]})", "\"spec\" to be an object, found a list"},
      {R"({"op":"ssm_pack_fwd","spec":{"taps":4},"dim":8,"rows":[[3]]})", "there is no field 'taps' here"},
      {R"({"op":"ssm_pack_fwd","spec":{"d_state":0},"dim":8,"rows":[[3]]})", "d_state = 0 is out of range"},
      {R"({"op":"ssm_pack_fwd","spec":{"z":1.5},"dim":8,"rows":[[3]]})", "for \"z\", found 1.5"},
      {R"({"op":"ssm_pack_fwd","spec":{"z":"on","z":"off"},"dim":8,"rows":[[3]]})",
       "every key once, found \"z\" twice"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":0,"rows":[[3]]})",
       "\"dim\" to be a whole number from 1 to 8388608, found 0"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":18446744073709551615,"rows":[[3]]})", "\"dim\" to be a whole number"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[]})", "\"rows\" to be a list of rows, found a list"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[[]]})", "\"rows\" to have a sequence, found none"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[3]})", "each of \"rows\" to be a list of lengths, found 3"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[[3,-1]]})", "\"rows\" to be a whole number from 1"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[[2147483647,1]]})", "a row of at most 2147483647 tokens"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"seqlen":6,"rows":[[3,4]]})",
       "\"seqlen\" to be a whole number from 7 to 2147483647, found 6"},
      {R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"calls":0,"rows":[[3]]})", "\"calls\" to be a whole number from 1"},
      {R"({"op":"ssm_pack_fwd"]})", "a JSON object, found none: parse error at line 1, column 21: "},
      {R"({"op":"ssm_pack_fwd","dim":1e999})", "a JSON object, found none: number overflow parsing '1e999'"},
  };
  for (const auto& [line, message] : cases) {
    const std::string said = refusal_of(line);
    EXPECT_EQ(said.find(kBegin), 0U) << line << ": " << said;
    EXPECT_NE(said.find(message), std::string::npos) << line << ": " << said;
  }
  // Nothing but an unfinished record, or nothing at all, is no capture.
  for (const char* none : {R"({"op":"ssm_pack_fwd")", ""}) {
    EXPECT_NE(refusal_of(none).find("expected a JSON object a line, found no whole line"), std::string::npos) << none;
  }
  const std::string good = R"({"op":"ssm_pack_fwd","spec":{},"dim":8,"rows":[[3]]})";
  EXPECT_NE(refusal_of(good + "\n{}").find("line 2"), std::string::npos);
}

TEST(Capture, ADeepLineIsNotFollowed) {
  const std::string deep(100'000, '[');
  EXPECT_NE(refusal_of(R"({"op":)" + deep + "}").find("a JSON object, found none"), std::string::npos);
  const std::string closed = deep + std::string(100'000, ']');
  EXPECT_NE(refusal_of(R"({"op":)" + closed + "}").find("\"op\" to be a string, found a list"), std::string::npos);
}

TEST(Capture, ReadsFilesAndRefusesFolders) {
  EXPECT_EQ(read_capture_file(PACKJIT_GOLDEN "/capture.jsonl").size(), 2U);
  EXPECT_EQ(test::message_of([] { (void)read_capture_file("/"); }),
            "cannot read captured shapes from '/': expected a file, found a folder");
  EXPECT_EQ(test::message_of([] { (void)read_capture_file("/no/such/file"); }),
            "cannot read captured shapes from '/no/such/file': No such file or directory");
}

TEST(Capture, ATargetIsTheBatchThatWasCalledMost) {
  const Spec scan(Operator::ssm_pack_fwd), convolution(Operator::conv1d_pack_fwd);
  const std::vector<CapturedShape> shapes = {
      {scan, 64, 4096, {{4096}}, 3},
      {scan, 64, 4000, {{4000}}, 5},  // the same bucket
      {convolution, 64, 4096, {{4096}}, 7},
      {scan, 64, 512, {{512}}, 100},
  };
  const std::vector<TuningTarget> targets = targets_of_capture(shapes);
  ASSERT_EQ(targets.size(), 3U);
  EXPECT_EQ(targets[0].work.tokens, 512);
  EXPECT_EQ(targets[1].work.tokens, 4000) << "8 calls in all";
  EXPECT_EQ(targets[1].bucket, (Bucket{64, 4096, 1, 512}));
  EXPECT_EQ(targets[2].spec, convolution);
}

}  // namespace
}  // namespace packjit
