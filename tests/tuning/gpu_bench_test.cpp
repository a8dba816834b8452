// The tuner's bench on a GPU, in a worker process whose kernels of some blocks have a planted fault.
#include "tuning/gpu_bench.hpp"

#include <gtest/gtest.h>

#include <iostream>

#include "database/builtin_config.hpp"
#include "runtime/compile_cache.hpp"
#include "tests/tuning/planted.hpp"
#include "tuning/worker_bench.hpp"

namespace packjit {
namespace {

std::shared_ptr<const CompileResult> compile_with_fault(const Source& source, const std::string& gpu_arch) {
  if (!source.text.starts_with("// conv1d_pack_fwd")) return compile_for_gpu(source, gpu_arch);
  const std::string text = with_fault(source.text, block_of(source.text));
  if (text == source.text) return compile_for_gpu(source, gpu_arch);
  return compile_for_gpu({"planted", text}, gpu_arch);
}

TuningTarget target() {
  return {Spec(Operator::conv1d_pack_fwd), {4096, 4096}, {4096, 3, 4096, 3000}, {"three", 4096, {{3000, 95, 1001}}}};
}

Config with_block(int block) {
  Config config = builtin_config(Spec(Operator::conv1d_pack_fwd), "sm_90", target().work);
  config.values.set("block", block);
  config.values.set("min_blocks", 1);
  return config;
}

class PlantedBench : public testing::Test {
 protected:
  void SetUp() override {
    const DriverSurvey survey = survey_driver();
    if (survey.gpus.empty()) GTEST_SKIP() << survey.problem;
  }
  static WorkerBench bench() {
    WorkerSettings settings{.command = {"/proc/self/exe", "--serve"}};
    settings.use = std::chrono::seconds(5);
    return WorkerBench(settings);
  }
};

TEST_F(PlantedBench, K43_AWrongVariantIsRejected) {
  WorkerBench trials = bench();
  const TuningTarget whole = target();
  EXPECT_EQ(trials.check(whole.spec, with_block(128), &whole).failure, "");
  const Trial wrong = trials.check(whole.spec, with_block(kSkipsTheTail), &whole);
  EXPECT_NE(wrong.failure.find("conv1d_pack_fwd bf16 out"), std::string::npos) << wrong.failure;
  EXPECT_FALSE(wrong.lost_worker);
}

TEST_F(PlantedBench, K44_VariantsThatWriteOutOfBoundsOrHangCostThemselvesOnly) {
  WorkerBench trials = bench();
  const std::vector<Config> candidates = {with_block(128), with_block(kWritesBehind), with_block(kWritesFarOutside),
                                          with_block(kNeverEnds), with_block(32)};
  const std::vector<Trial> timed = trials.time(target(), candidates, 5);
  for (const std::size_t fine : {0U, 4U}) {
    EXPECT_EQ(timed[fine].failure, "");
    ASSERT_EQ(timed[fine].rounds.size(), 5U);
    EXPECT_GT(timed[fine].rounds[0], 0);
  }
  EXPECT_NE(timed[1].failure.find("guard"), std::string::npos) << timed[1].failure;
  EXPECT_NE(timed[2].failure.find("conv1d_pack_fwd"), std::string::npos) << timed[2].failure;
  EXPECT_NE(timed[3].failure.find("did not end within 5 s"), std::string::npos) << timed[3].failure;
  for (const std::size_t lost : {1U, 2U, 3U}) EXPECT_TRUE(timed[lost].lost_worker);
  EXPECT_GT(trials.limit_ms(target()), 0);
}

TEST_F(PlantedBench, EveryOperatorIsCheckedAndTimed) {
  WorkerBench trials = bench();
  for (const Operator op : kOperators) {
    TuningTarget whole = target();
    whole.spec = Spec(op);
    for (const int stored : {0, 1}) {
      if (stored == 1 && !whole.spec.values.has("checkpoints")) continue;
      if (stored == 1) whole.spec.values.set("checkpoints", 1);
      const std::vector<Config> built_in = {builtin_config(whole.spec, trials.gpu().arch, whole.work)};
      EXPECT_EQ(trials.compile(whole.spec, built_in)[0].failure, "") << name_of(op);
      const Trial checked = trials.check(whole.spec, built_in[0], &whole);
      EXPECT_EQ(checked.failure, "") << name_of(op);
      EXPECT_GT(checked.check.error, 0) << name_of(op);
      const double limit = trials.limit_ms(whole);
      const Trial timed = trials.time(whole, built_in, 3)[0];
      ASSERT_EQ(timed.rounds.size(), 3U) << timed.failure;
      EXPECT_GT(timed.rounds[1], limit) << name_of(op);
      EXPECT_LT(timed.rounds[1], 100 * limit) << name_of(op);
      EXPECT_GT(timed.lowest_mhz, 100);
    }
  }
}

}  // namespace
}  // namespace packjit

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--serve") {
    packjit::GpuBench bench(packjit::CudaDevice::open(0, packjit::compile_with_fault), 4);
    packjit::serve_trials(bench, std::cin, std::cout);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
