#include "tuning/worker_bench.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

WorkerSettings imagined() {
  WorkerSettings settings{.command = {PACKJIT_FAKE_WORKER}};
  settings.use = std::chrono::milliseconds(300);
  return settings;
}

Config with_block(int block) {
  Config config(Operator::conv1d_pack_fwd);
  config.values.set("block", block);
  return config;
}

TuningTarget target() {
  return {Spec(Operator::conv1d_pack_fwd), {4096, 4096}, {4096, 2, 4096, 3000}, {"two", 4096, {{3000, 1096}}}};
}

TEST(WorkerBench, TellsWhatTheOtherProcessSees) {
  WorkerBench bench(imagined());
  EXPECT_EQ(bench.gpu().arch, "sm_90");
  EXPECT_EQ(bench.gpu().multiprocessors, 132);
  EXPECT_EQ(bench.gpu().memory_clock_mhz, 3201);
  EXPECT_EQ(bench.nvrtc(), "13.0");
  EXPECT_EQ(bench.driver(), "13.1");
  EXPECT_EQ(bench.limit_ms(target()), 4096);
  const std::vector<Config> fine = {with_block(128), with_block(160)};
  const std::vector<Trial> timed = bench.time(target(), fine, 3);
  ASSERT_EQ(timed.size(), 2U);
  EXPECT_EQ(timed[1].rounds, (std::vector<double>{4.096, 4.096, 4.096}));
  const TuningTarget whole = target();
  EXPECT_EQ(bench.check(whole.spec, fine[0], &whole).check.error, 0.5);
}

TEST(WorkerBench, K44_ACandidateThatCrashesHangsOrFaultsCostsItselfOnly) {
  WorkerBench bench(imagined());
  const std::vector<Config> candidates = {with_block(64), with_block(128), with_block(256), with_block(512),
                                          with_block(160)};
  const std::vector<Trial> trials = bench.time(target(), candidates, 2);
  EXPECT_NE(trials[0].failure.find("signal 11"), std::string::npos) << trials[0].failure;
  EXPECT_TRUE(trials[0].lost_worker);
  EXPECT_NE(trials[2].failure.find("did not end within 0.3 s"), std::string::npos) << trials[2].failure;
  EXPECT_TRUE(trials[2].lost_worker);
  EXPECT_EQ(trials[3].failure, "the GPU failed: an illegal address");
  EXPECT_TRUE(trials[3].lost_worker);
  for (const std::size_t fine : {1U, 4U}) {
    EXPECT_EQ(trials[fine].failure, "");
    EXPECT_EQ(trials[fine].rounds.size(), 2U);
  }
  EXPECT_TRUE(bench.check(Spec(Operator::conv1d_pack_fwd), with_block(64), nullptr).lost_worker);
  EXPECT_EQ(bench.check(Spec(Operator::conv1d_pack_fwd), with_block(128), nullptr).failure, "");
}

TEST(WorkerBench, K44_WhatCannotBeBlamedOnOneIsTriedAlone) {
  WorkerBench bench(imagined());
  const std::vector<Config> candidates = {with_block(128), with_block(1024), with_block(160)};
  const std::vector<Trial> trials = bench.time(target(), candidates, 1);
  EXPECT_EQ(trials[0].failure, "");
  EXPECT_EQ(trials[1].failure, "guard zone written");
  EXPECT_EQ(trials[2].failure, "");
  EXPECT_EQ(trials[2].rounds.size(), 1U);
}

TEST(WorkerBench, K44_ACandidateThatEndsTheCompilerIsFound) {
  WorkerBench bench(imagined());
  const std::vector<Config> candidates = {with_block(128), with_block(32), with_block(96), with_block(160)};
  const std::vector<Trial> trials = bench.compile(Spec(Operator::conv1d_pack_fwd), candidates);
  EXPECT_EQ(trials[0].failure, "");
  EXPECT_EQ(trials[1].failure, "spills registers");
  EXPECT_NE(trials[2].failure.find("signal 9"), std::string::npos) << trials[2].failure;
  EXPECT_EQ(trials[3].failure, "");
}

TEST(WorkerBench, AWorkersEndThatSigchldHidesIsNotCalledASuccess) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  WorkerBench bench(imagined());
  const Trial trial = bench.check(Spec(Operator::conv1d_pack_fwd), with_block(64), nullptr);
  std::signal(SIGCHLD, before);
  EXPECT_TRUE(trial.lost_worker);
  EXPECT_NE(trial.failure.find("a status that is not known, since SIGCHLD is ignored"), std::string::npos)
      << trial.failure;
}

TEST(WorkerBench, SaysWhyTheOtherProcessDoesNotStart) {
  WorkerSettings settings = imagined();
  settings.command.emplace_back("without-gpu");
  try {
    const WorkerBench bench(settings);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("exit status 3"), std::string::npos) << error.what();
  }
}

TEST(WorkerBench, AWorkerThatSaysSomethingElseIsQuoted) {
  WorkerSettings settings = imagined();
  settings.command.emplace_back("chatty");
  try {
    const WorkerBench bench(settings);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("said 'loading modules'; expected a JSON object a line"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace packjit
