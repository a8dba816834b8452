#include "tuning/report.hpp"

#include <gtest/gtest.h>

#include "database/builtin_config.hpp"
#include "generator/search_space.hpp"
#include "tests/message_of.hpp"
#include "tests/tuning/fake_bench.hpp"
#include "tuning/targets.hpp"

namespace packjit {
namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Report, TheTableHasOneLineAnEntry) {
  Spec spec(Operator::ssm_pack_bwd);
  spec.values.set("checkpoints", 1);
  const Workload work{.tokens = 32'768, .sequences = 54, .dim = 4096, .longest = 2048};
  const Entry entry{.spec = spec,
                    .bucket = bucket_of(spec.op, work),
                    .config = builtin_config(spec, "sm_90", work),
                    .measured = work,
                    .time = {1.5, 1.4, 1.55, 21},
                    .built_in = {2.0, 1.9, 2.1, 21},
                    .limit_share = 0.345,
                    .tried = 77,
                    .check = {},
                    .gpu = {},
                    .nvrtc = {},
                    .driver = {},
                    .source_digest = {},
                    .date = {}};
  const FailedCandidate failed{.spec = spec,
                               .config = entry.config,
                               .measured = work,
                               .reason = "spills",
                               .gpu = {},
                               .nvrtc = {},
                               .driver = {},
                               .source_digest = {}};
  FailedCandidate elsewhere = failed;
  elsewhere.measured.tokens = 4096;
  const std::string table = tuning_table(std::vector{entry}, std::vector{failed, failed, elsewhere});
  EXPECT_EQ(count_of(table, "\n"), 3U);
  EXPECT_NE(table.find("| ssm_pack_bwd checkpoints=on | dim 4096, 32768 tokens, spread 16, mean 512 | block=128 "),
            std::string::npos)
      << table;
  EXPECT_NE(table.find(" | 1.5000 | 2.0000 | 25.0 % | 10.0 % | 34 % | 77 | 2 |\n"), std::string::npos) << table;
}

TEST(Report, ThePictureMarksTheBuiltInConfigAndTheWinner) {
  const Spec spec(Operator::ssm_pack_fwd);
  const Workload work{.tokens = 32'768, .sequences = 54, .dim = 4096, .longest = 2048};
  const TuningTarget target{spec, bucket_of(spec.op, work), work, batch_of(work)};
  test::FakeBench bench(test::scan_model(0.5));
  const DeviceLimits limits{"sm_90", 227 * 1024};
  const TuningResult result =
      tune(bench, target, search_space(spec, limits), {}, {.seconds = 1e6, .sample = 20, .date = ""}, bench.clock());
  ASSERT_TRUE(result.entry);
  const std::string svg = tuning_picture(target, result);
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count_of(svg, "<rect "), result.tried.size() + 1);
  EXPECT_EQ(count_of(svg, "fill=\"#c05621\"><title>"), 1U);
  EXPECT_EQ(count_of(svg, "fill=\"#555\"><title>"), 1U);
  EXPECT_NE(svg.find(">ssm_pack_fwd dim 4096, 32768 tokens in 54 sequences, longest 2048</text>"), std::string::npos);
  EXPECT_EQ(test::message_of([&] { (void)tuning_picture(target, {}); }),
            "drawing ssm_pack_fwd dim 4096, 32768 tokens in 54 sequences, longest 2048: no candidate was measured, so "
            "there are no times to draw");
}

}  // namespace
}  // namespace packjit
