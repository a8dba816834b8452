#include "tuning/tuner.hpp"
#include "tuning/budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "database/builtin_config.hpp"
#include "generator/search_space.hpp"
#include "runtime/source_digest.hpp"
#include "tests/message_of.hpp"
#include "tests/tuning/fake_bench.hpp"
#include "tuning/targets.hpp"

namespace packjit {
namespace {

using test::FakeBench;
using test::scan_model;

const Spec kSpec(Operator::ssm_pack_fwd);

TuningTarget scan_target() {
  const Workload work{.tokens = 32'768, .sequences = 54, .dim = 4096, .longest = 2048};
  return {kSpec, bucket_of(kSpec.op, work), work, batch_of(work)};
}

Config with(Config config, std::initializer_list<std::pair<const char*, int>> values) {
  for (const auto& [field, value] : values) config.values.set(field, value);
  return config;
}
Config built_in() { return builtin_config(kSpec, "sm_90", scan_target().work); }
/// Where scan_model() is fastest.
Config best() {
  return with(built_in(), {{"block", 256}, {"lanes", 4}, {"tile_tokens", 32}, {"vector", 8}, {"min_blocks", 3}});
}

/// 72 Configs, the built-in and the best one among them.
std::vector<Config> small_space() {
  std::vector<Config> space;
  for (const int block : {64, 128, 256}) {
    for (const int lanes : {1, 2, 4, 8}) {
      for (const int tile : {8, 16, 32}) {
        for (const int min_blocks : {3, 4}) {
          const Config config =
              with(built_in(), {{"block", block}, {"lanes", lanes}, {"tile_tokens", tile}, {"min_blocks", min_blocks}});
          if (!refusal(kSpec, config, {"sm_90", 227 * 1024})) space.push_back(config);
        }
      }
    }
  }
  return space;
}

TuneOptions patient() {
  TuneOptions options;
  options.seconds = 1e6;
  options.date = "2025-06-01";
  return options;
}

TuningResult tuned(FakeBench& bench, std::span<const Config> space, const TuningKnowledge& known = {},
                   const TuneOptions& options = patient(), const TuningEvents& events = {}) {
  return tune(bench, scan_target(), space, known, options, bench.clock(), events);
}

TEST(Tuner, FindsTheFastestOfASmallSpace) {
  FakeBench bench(scan_model(0.5));
  const std::vector<Config> space = small_space();
  ASSERT_EQ(space.size(), 72U);
  const TuningResult result = tuned(bench, space);
  ASSERT_TRUE(result.entry) << result.problem;
  const Entry& entry = *result.entry;
  EXPECT_EQ(entry.config.values.text(), best().values.text());
  EXPECT_DOUBLE_EQ(entry.time.median_ms, 0.5);
  // Block 128, 1 lane, tiles of 16, 4 blocks: 1.1 * 1.4 * 1.12 * (1 + 0.1 * log2(4/3)) times as long.
  EXPECT_NEAR(entry.built_in.median_ms, 0.5 * 1.1 * 1.4 * 1.12 * 1.0415, 1e-4);
  EXPECT_EQ(entry.time.rounds, 21);
  EXPECT_EQ(entry.built_in.rounds, 21);
  EXPECT_DOUBLE_EQ(entry.limit_share, 0.002);
  EXPECT_EQ(entry.tried, 72);
  EXPECT_EQ(result.tried.size(), 72U);
  EXPECT_EQ(entry.check.method, "fake oracle");
  EXPECT_EQ(entry.lowest_mhz, 1900);
  EXPECT_EQ(entry.gpu.arch, "sm_90");
  EXPECT_EQ(entry.date, "2025-06-01");
  EXPECT_EQ(entry.source_digest, source_digest(kSpec, best()));
  EXPECT_EQ(entry.bucket, (Bucket{4096, 32'768, 16, 512}));
  EXPECT_FALSE(result.cut_short);
  EXPECT_TRUE(result.failed.empty());
}

TEST(Tuner, ComesNearTheBestOfALargeSpace) {
  FakeBench bench(scan_model(0.5));
  const std::vector<Config> space = search_space(kSpec, {"sm_90", 227 * 1024});
  ASSERT_GT(space.size(), 500U);
  bench.noise = 0.02;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    TuneOptions options = patient();
    options.seed = seed;
    const TuningResult result = tuned(bench, space, {}, options);
    ASSERT_TRUE(result.entry);
    EXPECT_LE(bench.model(scan_target(), result.entry->config), 0.5 * 1.03) << result.entry->config.values.text();
    EXPECT_LE(result.tried.size(), 256U + 16);
  }
}

TEST(Tuner, TriesAllOfALargeSpaceWhereAsked) {
  FakeBench bench(scan_model(0.5));
  const std::vector<Config> space = search_space(kSpec, {"sm_90", 227 * 1024});
  TuneOptions options = patient();
  options.exhaustive = true;
  const TuningResult result = tuned(bench, space, {}, options);
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), best().values.text());
  EXPECT_EQ(result.tried.size(), space.size());
}

TEST(Tuner, IsTheSameForASeed) {
  const std::vector<Config> space = search_space(kSpec, {"sm_90", 227 * 1024});
  std::vector<std::string> tried;
  for (int run = 0; run < 2; ++run) {
    FakeBench bench(scan_model(0.5));
    bench.noise = 0.03;
    std::string text;
    for (const TriedCandidate& one : tuned(bench, space).tried) text += one.config.values.text() + "\n";
    tried.push_back(text);
  }
  EXPECT_EQ(tried[0], tried[1]);
}

// Kernels of 2 to 20 microseconds with noise of several percent and a drift that is larger still.
TEST(Tuner, K45_FiveRunsAgree) {
  for (const double microseconds : {2.0, 20.0}) {
    std::vector<double> winners;
    for (const std::uint64_t run : {1, 2, 3, 4, 5}) {
      FakeBench bench(scan_model(microseconds / 1000));
      bench.noise = 0.04;
      bench.drift_share = 0.1;
      bench.set_seed(run);
      TuneOptions options = patient();
      options.seed = run;
      const TuningResult result = tuned(bench, small_space(), {}, options);
      ASSERT_TRUE(result.entry);
      winners.push_back(bench.model(scan_target(), result.entry->config));
    }
    const auto [least, most] = std::ranges::minmax(winners);
    EXPECT_LE(most / least, 1.05) << microseconds;
    EXPECT_LE(least, microseconds / 1000 * 1.05);
  }
}

TEST(Tuner, K45_TheIncumbentStaysWhereNothingIsFaster) {
  for (const std::uint64_t run : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
    FakeBench bench([](const TuningTarget&, const Config&) { return 0.005; });
    bench.noise = 0.05;
    bench.set_seed(run);
    TuningKnowledge known;
    const TuningResult from_built_in = tuned(bench, small_space(), known);
    ASSERT_TRUE(from_built_in.entry);
    EXPECT_EQ(from_built_in.entry->config.values.text(), built_in().values.text()) << run;
  }
}

TEST(Tuner, K45_AWinnerIsNotDethronedByNoise) {
  int changed = 0;
  for (const std::uint64_t run : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
    FakeBench bench(scan_model(0.01));
    bench.noise = 0.04;
    bench.set_seed(run);
    TuningKnowledge known;
    known.incumbent = best();
    const TuningResult result = tuned(bench, small_space(), known);
    ASSERT_TRUE(result.entry);
    if (result.entry->config != best()) ++changed;
  }
  EXPECT_EQ(changed, 0);
}

TEST(Tuner, NeverIsSlowerThanTheBuiltInConfig) {
  // What the database has was fast with another driver.
  FakeBench bench([](const TuningTarget&, const Config& config) { return config == built_in() ? 1.0 : 1.5; });
  bench.noise = 0.01;
  TuningKnowledge known;
  known.incumbent = best();
  const TuningResult result = tuned(bench, small_space(), known);
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), built_in().values.text());
  EXPECT_DOUBLE_EQ(result.entry->time.median_ms, result.entry->built_in.median_ms);
}

TEST(Tuner, TheIncumbentHasToRunOnThisGpu) {
  FakeBench bench(scan_model(0.5));
  TuningKnowledge known;
  known.incumbent = with(best(), {{"tile_tokens", 256}, {"lanes", 1}});  // more shared memory than there is
  const TuningResult result = tuned(bench, small_space(), known);
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), best().values.text());
  EXPECT_FALSE(bench.timed.contains(known.incumbent->values.text()));
}

// A candidate that writes half of its output passes only where the last one's output lies there: the bench poisons it.
TEST(Tuner, K42_WhoWritesHalfDoesNotWin) {
  FakeBench bench(scan_model(0.5));
  bench.wrong_at_shape = [](const Config& config) { return config == best(); };
  std::vector<FailedCandidate> failed;
  TuningEvents events;
  events.failed = [&](const FailedCandidate& one) { failed.push_back(one); };
  const TuningResult result = tuned(bench, small_space(), {}, patient(), events);
  ASSERT_TRUE(result.entry);
  // The next best has 4 blocks instead of 3.
  EXPECT_EQ(result.entry->config.values.text(), with(best(), {{"min_blocks", 4}}).values.text());
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].config.values.text(), best().values.text());
  EXPECT_EQ(failed[0].reason, "the last tokens are missing");
  EXPECT_EQ(failed[0].source_digest, source_digest(kSpec, best()));
  EXPECT_EQ(failed[0].nvrtc, "12.4");
  EXPECT_EQ(failed[0].measured, scan_target().work);
}

TEST(Tuner, K43_WrongButFastCandidatesDoNotWin) {
  // All with blocks of 64 are wrong, and ten times as fast as anything else: more than there are finalists.
  FakeBench bench([](const TuningTarget& target, const Config& config) {
    return scan_model(0.5)(target, config) * (config.values["block"] == 64 ? 0.1 : 1);
  });
  bench.wrong = [](const Config& config) { return config.values["block"] == 64; };
  const TuningResult result = tuned(bench, small_space());
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), best().values.text());
  ASSERT_GE(result.failed.size(), 5U);
  for (const FailedCandidate& failed : result.failed) {
    EXPECT_EQ(failed.config.values["block"], 64);
    EXPECT_EQ(failed.reason, "out is 0.5 away");
  }
}

TEST(Tuner, K44_WhoLosesTheWorkerCostsOneCandidate) {
  FakeBench bench(scan_model(0.5));
  bench.crashes = [](const Config& config) { return config.values["lanes"] == 8 && config.values["block"] == 128; };
  const TuningResult result = tuned(bench, small_space());
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), best().values.text());
  EXPECT_EQ(result.failed.size(), 6U);  // three tiles, two min_blocks
  EXPECT_EQ(result.tried.size(), 66U) << "the others were measured nevertheless";
  for (const FailedCandidate& failed : result.failed) EXPECT_EQ(failed.reason, "the worker ended with signal 11");
}

TEST(Tuner, K44_ACrashInTheFinalsCostsOneFinalist) {
  FakeBench bench(scan_model(0.5));
  int calls = 0;
  bench.crashes = [&](const Config& config) { return config == best() && ++calls > 20; };
  const TuningResult result = tuned(bench, small_space());
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), with(best(), {{"min_blocks", 4}}).values.text());
  EXPECT_EQ(result.entry->time.rounds, 21);
  ASSERT_EQ(result.failed.size(), 1U);
}

TEST(Tuner, WhatDoesNotCompileIsNotTimed) {
  FakeBench bench(scan_model(0.5));
  bench.spills = [](const Config& config) { return config.values["block"] == 256; };
  const TuningResult result = tuned(bench, small_space());
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values["block"], 128);
  EXPECT_EQ(result.failed.size(), 24U);
  for (const std::string& timed : bench.timed) EXPECT_EQ(timed.find("block=256"), std::string::npos);
}

TEST(Tuner, KnownFailuresAreNotTriedAgain) {
  FakeBench bench(scan_model(0.5));
  TuningKnowledge known;
  known.failed = [](const Config& config, const std::string& digest) {
    return config == best() && digest == source_digest(kSpec, best());
  };
  const TuningResult result = tuned(bench, small_space(), known);
  ASSERT_TRUE(result.entry);
  EXPECT_NE(result.entry->config, best());
  EXPECT_EQ(std::ranges::count(bench.compiled, best().values.text()), 0);
  EXPECT_TRUE(result.failed.empty());
}

TEST(Tuner, NeighboursAreTriedFirst) {
  FakeBench bench(scan_model(0.5));
  TuningKnowledge known;
  known.neighbours = {best(), built_in()};
  const TuningResult result = tuned(bench, search_space(kSpec, {"sm_90", 227 * 1024}), known);
  ASSERT_GE(result.tried.size(), 2U);
  EXPECT_EQ(result.tried[0].config, built_in());
  EXPECT_EQ(result.tried[1].config, best());
  EXPECT_EQ(std::ranges::count(bench.compiled, built_in().values.text()), 1);
}

TEST(Tuner, WhatAnEarlierRunMeasuredIsNotMeasuredAgain) {
  FakeBench first(scan_model(0.5));
  std::vector<TriedCandidate> tried;
  TuningEvents events;
  events.tried = [&](const TriedCandidate& one) { tried.push_back(one); };
  (void)tuned(first, small_space(), {}, patient(), events);
  ASSERT_EQ(tried.size(), 72U);
  tried.erase(tried.begin() + 60, tried.end());
  FakeBench second(scan_model(0.5));
  TuningKnowledge known;
  known.tried = tried;
  const TuningResult result = tuned(second, small_space(), known);
  ASSERT_TRUE(result.entry);
  EXPECT_EQ(result.entry->config.values.text(), best().values.text());
  EXPECT_EQ(result.tried.size(), 72U);
  EXPECT_LT(second.timed.size(), 40U) << "twelve that were left, and the best";
}

TEST(Tuner, KeepsTheBudgetToWithinACandidate) {
  const std::vector<Config> space = search_space(kSpec, {"sm_90", 227 * 1024});
  for (const double seconds : {3.0, 5.0, 10.0, 20.0, 40.0}) {
    FakeBench bench(scan_model(0.5));
    bench.noise = 0.02;
    TuneOptions options = patient();
    options.seconds = seconds;
    options.exhaustive = true;
    const TuningResult result = tuned(bench, space, {}, options);
    EXPECT_LE(bench.now - 1000, seconds + 1.3) << "a compile of 1 s, a check of 0.2 s";
    EXPECT_TRUE(result.cut_short);
    ASSERT_TRUE(result.entry) << seconds;
    EXPECT_LE(result.entry->time.median_ms, result.entry->built_in.median_ms);
    if (seconds >= 10) {
      EXPECT_GE(bench.now - 1000, seconds / 2) << "time was left over";
      EXPECT_LT(result.entry->time.median_ms, 0.95 * result.entry->built_in.median_ms);
    }
  }
}

TEST(Tuner, WhatADearCompileFoundIsComparedAllTheSame) {
  for (const double grace : {0.0, 4.0}) {
    FakeBench bench(scan_model(0.5));
    bench.at_work = [&] { bench.compile_seconds = 3; };  // the built-in Config's took 1
    TuneOptions options = patient();
    options.seconds = 4;
    options.grace_seconds = grace;
    const TuningResult result = tuned(bench, small_space(), {}, options);
    ASSERT_TRUE(result.entry);
    EXPECT_TRUE(result.cut_short);
    EXPECT_EQ(result.entry->time.rounds, grace > 0 ? 21 : 2);
    EXPECT_EQ(result.entry->time.median_ms<result.entry->built_in.median_ms, grace> 0);
    EXPECT_LE(bench.now - 1000, 4 + 4 + 0.2) << "a compile that was begun, a check";
  }
}

TEST(TunerBudget, AStepCostsSomethingOnceAndSomethingAUnit) {
  double now = 10;
  Budget budget([&] { return now; }, 100);
  const auto spend = [&](int units, double seconds) {
    const double begin = budget.now();
    now += seconds;
    budget.spent(Budget::Step::time, units, begin);
  };
  EXPECT_EQ(budget.estimate(Budget::Step::time, 7), 0);
  spend(2, 0.25);
  EXPECT_DOUBLE_EQ(budget.estimate(Budget::Step::time, 8), 1);
  spend(32, 0.5);  // 1/64 each, so the first took 7/32 beside its two
  EXPECT_NEAR(budget.estimate(Budget::Step::time, 64), 0.21875 + 1, 1e-9);
  EXPECT_NEAR(budget.left(), 99.25, 1e-9);
}

TEST(Tuner, WithoutTimeThereIsNoEntry) {
  FakeBench bench(scan_model(0.5));
  TuneOptions options = patient();
  options.seconds = 0;
  const TuningResult result = tuned(bench, small_space(), {}, options);
  EXPECT_FALSE(result.entry);
  EXPECT_TRUE(result.cut_short);
  EXPECT_EQ(result.problem, "no time was left to measure the built-in Config");
  EXPECT_TRUE(bench.compiled.empty());
}

TEST(Tuner, WithLittleTimeTheIncumbentStays) {
  FakeBench bench(scan_model(0.5));
  TuneOptions options = patient();
  options.seconds = 2.3;  // both compiled and the built-in Config checked
  TuningKnowledge known;
  known.incumbent = with(best(), {{"min_blocks", 4}});
  const TuningResult result = tuned(bench, small_space(), known, options);
  ASSERT_TRUE(result.entry);
  EXPECT_TRUE(result.cut_short);
  EXPECT_EQ(result.entry->config.values.text(), known.incumbent->values.text());
}

TEST(Tuner, ABuiltInConfigThatIsWrongEndsIt) {
  FakeBench bench(scan_model(0.5));
  bench.wrong = [](const Config& config) { return config == built_in(); };
  const TuningResult result = tuned(bench, small_space());
  EXPECT_FALSE(result.entry);
  EXPECT_EQ(result.problem, "the built-in Config cannot be measured: out is 0.5 away");
  EXPECT_EQ(result.failed.size(), 1U);
  bench.wrong = {};
  bench.crashes = [](const Config& config) { return config == built_in(); };
  EXPECT_EQ(tuned(bench, small_space()).problem,
            "the built-in Config cannot be measured: the worker ended with signal 11");
}

TEST(Tuner, ABenchThatForgetsCandidatesIsAnError) {
  class Forgetful : public FakeBench {
   public:
    using FakeBench::FakeBench;
    std::vector<Trial> compile(const Spec&, std::span<const Config>) override { return {}; }
  };
  Forgetful bench(scan_model(0.5));
  EXPECT_EQ(test::message_of<std::logic_error>([&] { (void)tuned(bench, small_space()); }),
            "the trial bench gave 0 results for 1 candidates");
}

TEST(Tuner, ReportsProgress) {
  FakeBench bench(scan_model(0.5));
  int last_done = 0, last_total = 0, calls = 0;
  TuningEvents events;
  events.progress = [&](const std::string& label, int done, int total) {
    EXPECT_TRUE(label.starts_with("ssm_pack_fwd "));
    EXPECT_GE(done, last_done);
    EXPECT_LE(done, total);
    last_done = done;
    last_total = total;
    ++calls;
  };
  (void)tuned(bench, small_space(), {}, patient(), events);
  EXPECT_EQ(last_done, 72);
  EXPECT_EQ(last_total, 72);
  EXPECT_GT(calls, 10);
}

}  // namespace
}  // namespace packjit
