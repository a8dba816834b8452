#include "tuning/tuning_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/source_digest.hpp"
#include "tests/tuning/fake_bench.hpp"
#include "tests/tuning/fake_store.hpp"
#include "tuning/targets.hpp"

namespace packjit {
namespace {

using test::FakeBench;
using test::MemoryStore;
using test::scan_model;
using Kind = TargetOutcome::Kind;

TuningTarget target_of(Operator op, const Workload& work) {
  const Spec spec(op);
  return {spec, bucket_of(op, work), work, batch_of(work)};
}
std::vector<TuningTarget> four_targets() {
  std::vector<TuningTarget> targets;
  for (const std::int64_t dim : {1536, 2048, 4096, 5120}) {
    targets.push_back(
        target_of(Operator::ssm_pack_fwd, {.tokens = 4096, .sequences = 12, .dim = dim, .longest = 1024}));
  }
  return targets;
}
std::vector<Kind> kinds_of(std::span<const TargetOutcome> outcomes) {
  std::vector<Kind> kinds;
  for (const TargetOutcome& outcome : outcomes) kinds.push_back(outcome.kind);
  return kinds;
}
TuningRunOptions plenty() {
  TuningRunOptions options;
  options.seconds = 1e6;
  return options;
}

TEST(TuningRun, TunesWhatIsNotDone) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  std::vector<TuningTarget> targets = four_targets();
  const std::span half(targets.data(), 2);
  EXPECT_EQ(kinds_of(tune_all(bench, half, store, plenty(), bench.clock())), (std::vector<Kind>(2, Kind::tuned)));
  EXPECT_EQ(store.entries.size(), 2U);
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, plenty(), bench.clock());
  EXPECT_EQ(kinds_of(outcomes), (std::vector<Kind>{Kind::done_before, Kind::done_before, Kind::tuned, Kind::tuned}));
  EXPECT_EQ(store.entries.size(), 4U);
  ASSERT_TRUE(outcomes[0].before);
  // Another version of the compiler makes other code of the same source.
  bench.nvrtc_version = "12.8";
  EXPECT_EQ(kinds_of(tune_all(bench, half, store, plenty(), bench.clock())), (std::vector<Kind>(2, Kind::tuned)));
  bench.nvrtc_version = "12.4";
}

TEST(TuningRun, WhatIsDoneIsTheIncumbentWhereAskedAgain) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  const std::vector<TuningTarget> targets = {four_targets().front()};
  (void)tune_all(bench, targets, store, plenty(), bench.clock());
  const Config first = store.entries.front().config;
  bench.noise = 0.05;
  TuningRunOptions options = plenty();
  options.again = true;
  options.each.seed = 9;
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, options, bench.clock());
  EXPECT_EQ(outcomes[0].kind, Kind::tuned);
  EXPECT_EQ(outcomes[0].result.tried[1].config, first) << "measured right after the built-in Config";
}

TEST(TuningRun, WithoutTimeToSearchWhatIsInUseStays) {
  struct Shipped : MemoryStore {
    std::optional<Config> in_use(const TuningTarget&, const GpuProperties&) override { return config; }
    std::optional<Config> config;
  } store;
  FakeBench bench(scan_model(0.1));
  const std::vector<TuningTarget> targets = {four_targets().front()};
  MemoryStore scratch;
  (void)tune_all(bench, targets, scratch, plenty(), bench.clock());
  store.config = scratch.entries.front().config;
  TuningRunOptions options;
  options.seconds = 1;  // less than a compile
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, options, bench.clock());
  EXPECT_TRUE(outcomes[0].result.cut_short);
  EXPECT_FALSE(outcomes[0].before);
  ASSERT_EQ(store.entries.size(), 1U);
  EXPECT_EQ(store.entries.front().config, *store.config);
}

TEST(TuningRun, BeginsWithWhatWonForSimilarShapes) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  const std::vector<TuningTarget> targets = four_targets();
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, plenty(), bench.clock());
  for (std::size_t i = 1; i < 4; ++i)
    EXPECT_EQ(outcomes[i].result.tried[1].config, outcomes[i - 1].result.entry->config);
}

TEST(TuningRun, SharesTheTime) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  TuningRunOptions options;
  options.seconds = 60;
  const double begin = bench.now;
  const std::vector<TargetOutcome> outcomes = tune_all(bench, four_targets(), store, options, bench.clock());
  EXPECT_EQ(kinds_of(outcomes), (std::vector<Kind>(4, Kind::tuned)));
  EXPECT_LE(bench.now - begin, 61.3);
  // The first of the Spec has 8 of 11 parts, 43.6 s; the others share the rest.
  EXPECT_LE(outcomes[0].seconds, 45);
  EXPECT_GE(outcomes[0].seconds, 15);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GE(outcomes[i].seconds, 4) << i;
}

TEST(TuningRun, AQuickTargetGivesItsRestToOthers) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  std::vector<TuningTarget> targets = four_targets();
  targets.resize(2, targets.front());
  TuningRunOptions options;
  options.seconds = 50;
  options.each.exhaustive = true;
  const auto space_of = [&, calls = 0](const Spec& spec, const DeviceLimits& limits) mutable {
    std::vector<Config> space = search_space(spec, limits);
    if (calls++ == 0) space.erase(space.begin() + 4, space.end());
    return space;
  };
  targets[1].spec.values.set("checkpoints", 1);
  const std::vector<TargetOutcome> outcomes = tune_all(bench, targets, store, options, bench.clock(), {}, space_of);
  EXPECT_LT(outcomes[0].seconds, 10);
  EXPECT_GT(outcomes[1].seconds, 30);
}

TEST(TuningRun, GoesOnWhereTheTimeEnded) {
  FakeBench bench(scan_model(0.1));
  MemoryStore store;
  TuningRunOptions options;
  options.seconds = 1;  // less than a compile
  std::vector<TargetOutcome> outcomes = tune_all(bench, four_targets(), store, options, bench.clock());
  EXPECT_EQ(outcomes[3].kind, Kind::no_time);
  EXPECT_LT(store.entries.size(), 4U);
  outcomes = tune_all(bench, four_targets(), store, plenty(), bench.clock());
  EXPECT_EQ(store.entries.size(), 4U);
}

TEST(TuningRun, K44_FailuresAreRecordedOnceAndNeverTriedAgain) {
  FakeBench bench(scan_model(0.1));
  bench.crashes = [](const Config& config) { return config.values["lanes"] == 8; };
  MemoryStore store;
  (void)tune_all(bench, four_targets(), store, plenty(), bench.clock());
  ASSERT_GT(store.failures.size(), 0U);
  std::vector<std::string> configs;
  for (const FailedCandidate& failed : store.failures) {
    EXPECT_EQ(failed.reason, "the worker ended with signal 11");
    configs.push_back(failed.config.values.text());
  }
  std::ranges::sort(configs);
  EXPECT_EQ(std::ranges::adjacent_find(configs), configs.end()) << "one of four targets met it, not all";
}

TEST(TuningRun, ATargetThatCannotBeTunedDoesNotStopTheOthers) {
  FakeBench bench([](const TuningTarget& target, const Config& config) { return scan_model(0.1)(target, config); });
  MemoryStore store;
  int checks = 0;
  bench.wrong = [&](const Config&) { return ++checks == 1; };
  int finished = 0;
  TuningRunEvents events;
  events.finished = [&](const TuningTarget&, const TargetOutcome&) { ++finished; };
  const std::vector<TargetOutcome> outcomes = tune_all(bench, four_targets(), store, plenty(), bench.clock(), events);
  EXPECT_EQ(kinds_of(outcomes), (std::vector<Kind>{Kind::failed, Kind::tuned, Kind::tuned, Kind::tuned}));
  EXPECT_EQ(outcomes[0].result.problem, "the built-in Config cannot be measured: out is 0.5 away");
  EXPECT_EQ(finished, 4);
}

// New mixes of lengths fall into buckets that are tuned already.
TEST(TuningRun, K40_RandomTotalsTuneNothingAfterWarmUp) {
  FakeBench bench([](const TuningTarget&, const Config&) { return 0.1; });
  MemoryStore store;
  const std::int64_t dims[] = {2048};
  const Operator convolutions[] = {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd};
  const auto random_batch = [](SplitMix64& random) {
    const auto tokens = static_cast<std::int64_t>(512 + random.below(100'000));
    return BatchShape{"random", tokens, {lognormal_lengths(tokens, random.next())}};
  };
  (void)tune_all(bench, targets_of_buckets(convolutions, dims, {}), store, plenty(), bench.clock());
  SplitMix64 random(1);
  for (int i = 0; i < 200; ++i) {
    (void)tune_all(bench, targets_of_batch(random_batch(random), std::vector{Operator::ssm_pack_bwd}, dims, {}), store,
                   plenty(), bench.clock());
  }
  EXPECT_LE(store.entries.size(), 2U * 17 + 2 * 17);
  const int calls = bench.time_calls;
  ASSERT_GT(calls, 0);
  SplitMix64 other(2);
  for (int i = 0; i < 100; ++i) {
    for (const Operator op : {Operator::ssm_pack_bwd, Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
      const BatchShape batch = random_batch(other);
      for (const TargetOutcome& outcome :
           tune_all(bench, targets_of_batch(batch, std::vector{op}, dims, {}), store, plenty(), bench.clock())) {
        EXPECT_EQ(outcome.kind, Kind::done_before) << batch.tokens() << " tokens, longest " << batch.longest();
      }
    }
  }
  EXPECT_EQ(bench.time_calls, calls);
}

}  // namespace
}  // namespace packjit
