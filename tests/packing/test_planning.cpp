#include "packing/planning.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "cli/lengths_file.hpp"
#include "tests/packing/plan_text.hpp"

namespace packjit {
namespace {

// By hand, 1.4B: d_model 2048, d_inner 4096, dt_rank 128.
//   in 2048 * 8192 = 16,777,216; conv 4096 * 5 = 20,480; x 4096 * (128 + 32) = 655,360;
//   dt 128 * 4096 + 4096 = 528,384; A, D 4096 * 17 = 69,632; out 4096 * 2048 = 8,388,608; norm 2,048
//   a layer 26,441,728; 48 of them 1,269,202,944; embedding 50,280 * 2048 = 102,973,440; last norm 2,048
//   together 1,372,178,432
TEST(Parameters, Of1400M) {
  const ParameterCount count = parameters_of(mamba_shape_named("1.4b"));
  EXPECT_EQ(count.in_projection, 16777216);
  EXPECT_EQ(count.convolution, 20480);
  EXPECT_EQ(count.x_projection, 655360);
  EXPECT_EQ(count.dt_projection, 528384);
  EXPECT_EQ(count.scan, 69632);
  EXPECT_EQ(count.out_projection, 8388608);
  EXPECT_EQ(count.layer, 26441728);
  EXPECT_EQ(count.embedding, 102973440);
  EXPECT_EQ(count.total, 1372178432);
}

// By hand, 2.8B: d_model 2560, d_inner 5120, dt_rank 160.
//   in 26,214,400; conv 25,600; x 983,040; dt 824,320; A, D 87,040; out 13,107,200; norm 2,560
//   a layer 41,244,160; 64 of them 2,639,626,240; embedding 128,716,800; last norm 2,560: 2,768,345,600
// 130m: d_model 768, d_inner 1536, dt_rank 48: a layer 3,771,648; 24 of them 90,519,552; embedding 38,615,040;
//   last norm 768: 129,135,360
TEST(Parameters, OfOtherPublishedSizes) {
  EXPECT_EQ(parameters_of(mamba_shape_named("2.8b")).total, 2768345600);
  EXPECT_EQ(parameters_of(mamba_shape_named("130m")).total, 129135360);
}

// By hand, d_inner 2^26, dt_rank 2^16: a layer 2^47 + 5 * 2^26 + 2^26 (2^16 + 32) + 2^26 (2^16 + 1) + 17 * 2^26 + 2^46
// + 2^20 = 219,906,017,591,296; 10,000 of them and 50,281 * 2^20. 16 bytes each are more than 2^64.
TEST(Parameters, AsManyAsNoMemoryHoldsAreRefused) {
  try {
    (void)parameters_of({10000, 1 << 20, 16, 64});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "plan: parameters (by layers, d_model and expand) must be from 1 to 288230376151711744, found "
                 "2199060228636409856");
  }
}

TEST(Parameters, TheVocabularyIsRoundedUp) {
  EXPECT_EQ((MambaShape{1, 16, 16, 2, 4, 50277}).padded_vocabulary(), 50280);
  EXPECT_EQ((MambaShape{1, 16, 16, 2, 4, 50280}).padded_vocabulary(), 50280);
}

// By hand, 1.4B on 80 GB: bf16 weight 2, gradient 2, fp32 copy 4, AdamW 8 bytes a parameter, 16 together:
//   1,372,178,432 * 16 = 21,954,854,912. Reserve 8,000,000,000. Left 50,045,145,088.
// A layer keeps of a token: residual 4 * 2048 = 8,192; norm 2 * 2048 = 4,096; x and z 4 * 4096 = 16,384;
//   u 8,192; dt, B, C 2 * 160 = 320; delta 8,192; scan 8,192: 53,568.
// Passing: the same once more as gradients 53,568, sums 2 * 4096 = 8,192, checkpoints 8 * 4096 = 32,768: 94,528.
// Logits 50,280 * (2 + 2 + 4) = 402,240. A token: 48 * 53,568 + 94,528 + 402,240 = 3,068,032.
// 50,045,145,088 / 3,068,032 = 16,311.8.
TEST(Memory, Of1400MOn80GB) {
  MemoryOptions options;
  options.gpu_gigabytes = 80;
  const MemoryBudget budget = memory_budget(mamba_shape_named("1.4b"), options);
  EXPECT_EQ(budget.bytes_per_parameter, 16);
  EXPECT_EQ(budget.model, 21954854912);
  EXPECT_EQ(budget.reserve, 8000000000);
  EXPECT_EQ(budget.left, 50045145088);
  EXPECT_EQ(budget.layer_token, 53568);
  EXPECT_EQ(budget.passing_token, 94528);
  EXPECT_EQ(budget.logits_token, 402240);
  EXPECT_EQ(budget.token, 3068032);
  EXPECT_EQ(budget.tokens, 16311);

  // With the scan's checkpoints kept: a layer 53,568 + 32,768, passing 94,528 - 32,768; 4,608,128 a token.
  options.kept = Kept::all;
  EXPECT_EQ(memory_budget(mamba_shape_named("1.4b"), options).token, 4608128);
  // Layer inputs only: 48 * 8,192 + 94,528 + 53,568 + 402,240 = 943,552.
  options.kept = Kept::layer_inputs;
  EXPECT_EQ(memory_budget(mamba_shape_named("1.4b"), options).token, 943552);
  // The logits of 1,000 tokens at once: 402,240,000 bytes, and 402,240 a token less.
  options.logits_tokens = 1000;
  const MemoryBudget bounded = memory_budget(mamba_shape_named("1.4b"), options);
  EXPECT_EQ(bounded.token, 541312);
  EXPECT_EQ(bounded.logits, 402240000);
  EXPECT_EQ(bounded.left, 50045145088 - 402240000);
}

TEST(Memory, FloatWeightsHaveNoSecondCopyAndOptimizersDiffer) {
  MemoryOptions options;
  options.gpu_gigabytes = 80;
  options.element_bytes = 4;
  const auto bytes = [&] { return memory_budget(mamba_shape_named("130m"), options).bytes_per_parameter; };
  EXPECT_EQ(bytes(), 16);
  options.optimizer = "sgd";
  EXPECT_EQ(bytes(), 12);
  options.element_bytes = 2;
  options.optimizer = "adamw-8bit";
  EXPECT_EQ(bytes(), 10);
}

// Lengths 100, 300 and 2,000, padded to 1,000: 100 + 300 + 1,000 of 3,000 slots are real, 1,000 of 2,400 tokens lost.
TEST(Padded, UseOfASetup) {
  const PaddedUse use = padded_use(documents({100, 300, 2000}), {6, 1000});
  EXPECT_DOUBLE_EQ(use.tokens, 2800);
  EXPECT_DOUBLE_EQ(use.fill_rate, 1400.0 / 3000);
  EXPECT_DOUBLE_EQ(use.dropped, 1000.0 / 2400);
}

// At the measured points themselves, one layer of 4,096 channels, in milliseconds.
TEST(Cost, GoesThroughTheMeasuredPoints) {
  MambaShape shape = mamba_shape_named("1.4b");
  shape.layers = 1;
  EXPECT_NEAR(operator_seconds(shape, 32768, Kept::activations), 4.7995e-3, 1e-9);  // 0.1333 + 0.2117 + 4.4545
  EXPECT_NEAR(operator_seconds(shape, 4096, Kept::activations), 0.9180e-3, 1e-9);   // 0.0204 + 0.0354 + 0.8622
  // The same and, once more, 0.1333 + 0.7399.
  EXPECT_NEAR(operator_seconds(shape, 32768, Kept::layer_inputs), 5.6727e-3, 1e-9);
  shape.layers = 10;
  EXPECT_NEAR(operator_seconds(shape, 32768, Kept::all), 41.910e-3, 1e-9);  // 10 * (0.1333 + 0.2117 + 3.8460)
}

// The table is typed in; this holds it to the files that it names.
TEST(Cost, TableIsThatOfTheMeasurements) {
  for (const auto& [tokens, kept] : {std::pair(4096, Kept::activations),
                                     {4096, Kept::layer_inputs},
                                     {4096, Kept::all},
                                     {32768, Kept::activations},
                                     {32768, Kept::layer_inputs},
                                     {32768, Kept::all}}) {
    const std::string checkpoints = kept == Kept::all ? "stored" : "recomputed";
    const std::string name = PACKJIT_BENCH_DATA "/../results/h200_ops_" + std::to_string(tokens) + ".json";
    std::ifstream file(name);
    ASSERT_TRUE(file) << name;
    const auto report = nlohmann::json::parse(file);
    EXPECT_EQ(report["dim"], 4096);
    const CostTable& table = cost_table(kept);
    EXPECT_EQ(report["gpu"], table.gpu);
    EXPECT_EQ(report["date"], table.date);
    std::size_t found = 0;
    for (const char* list : {"operators", "together"}) {
      for (const auto& row : report[list]) {
        if (row.contains("checkpoints") && row["checkpoints"] != checkpoints) continue;
        for (const MeasuredOperator& measured : table.operators) {
          if (row["operator"] != measured.name) continue;
          ++found;
          EXPECT_NEAR(row["median_ms"].get<double>(), tokens == 4096 ? measured.ms_4096 : measured.ms_32768, 1e-4);
        }
      }
    }
    EXPECT_EQ(found, table.operators.size()) << name;
  }
}

// 8 documents of 1,024 tokens in rows of 1,024: full rows. The 16,311 tokens of above are 15 rows, 15,360 tokens,
// 15 sequences; the padded set-up has 4 of 1,024 in 2,048 each: 4,096 tokens, half of them real.
TEST(Advice, OfASmallCase) {
  MemoryOptions options;
  options.gpu_gigabytes = 80;
  const Advice advice = advise(mamba_shape_named("1.4b"), options, std::vector<Document>(8, {1024, {}}), {4, 2048});
  ASSERT_EQ(advice.choices.size(), 2u);  // 512 and 1,024: a longer row is not needed
  const PackChoice& choice = advice.choices[advice.chosen];
  EXPECT_EQ(choice.pack_length, 1024);
  EXPECT_EQ(choice.rows, 15);
  EXPECT_DOUBLE_EQ(choice.fill_rate, 1);
  EXPECT_DOUBLE_EQ(choice.tokens, 15360);
  EXPECT_DOUBLE_EQ(choice.sequences, 15);
  EXPECT_DOUBLE_EQ(advice.padded.tokens, 4096);
  EXPECT_DOUBLE_EQ(advice.batch_ratio, 3.75);
  EXPECT_DOUBLE_EQ(advice.linear_scale(), 3.75);
  EXPECT_NEAR(advice.square_root_scale(), 1.9365, 1e-4);
  EXPECT_EQ(advice.rows_for_same_batch, 4);
  EXPECT_DOUBLE_EQ(advice.padding_speedup(), 2);
}

// 2.8B has 64 layers of 5,120 channels, 80 times those of the table; on 141 GB one row of 65,536 tokens. By the lines a
// second forward takes 0.0204 + 0.1129 * 61,440 / 28,672 + 0.1518 + 0.5881 * 61,440 / 28,672 = 1.6743 ms of 4,096
// channels: 133.95 ms beside 738.84.
TEST(Advice, ASecondForwardIsCounted) {
  MemoryOptions options;
  options.gpu_gigabytes = 141;
  options.kept = Kept::layer_inputs;
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  EXPECT_NEAR(advise(mamba_shape_named("2.8b"), options, given, {}).operator_ms, 872.79, 0.01);
}

TEST(Advice, RealLengthsOnBothMemories) {
  const std::vector<Document> given = read_lengths_file(PACKJIT_BENCH_DATA "/mixed_lengths.txt");
  for (const std::string_view model : {"1.4b", "2.8b"}) {
    std::int64_t tokens = 0;
    for (const double gigabytes : {80.0, 141.0}) {
      MemoryOptions options;
      options.gpu_gigabytes = gigabytes;
      const Advice advice = advise(mamba_shape_named(model), options, given, {});
      const PackChoice& choice = advice.choices[advice.chosen];
      EXPECT_LE(choice.rows * choice.pack_length, advice.memory.tokens);
      EXPECT_GT(choice.fill_rate, 0.95);
      EXPECT_GT(choice.rows * choice.pack_length, tokens);
      EXPECT_GT(advice.operator_speedup(), 1);
      tokens = choice.rows * choice.pack_length;
    }
  }
}

std::string refusal(const std::string& model, const MemoryOptions& options) {
  try {
    (void)advise(mamba_shape_named(model), options, documents({100}), {});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

// 2,768,345,600 parameters of 16 bytes are 44.3 GB: nothing that is kept for tokens would help.
TEST(Advice, AModelThatDoesNotFitAloneIsSaidSo) {
  MemoryOptions options;
  options.gpu_gigabytes = 40;
  EXPECT_EQ(refusal("2.8b", options),
            "plan: the model alone does not fit, whatever the batch: of 40.0 GB, 4.0 GB are in reserve, and 44.3 GB go "
            "to weights, gradients and optimizer, 16 bytes a parameter; divide these over GPUs, choose an optimizer "
            "that keeps less (--optimizer), or a smaller model");
}

TEST(Advice, AFewLengthsAreNoSample) {
  MemoryOptions options;
  options.gpu_gigabytes = 80;
  const auto is_small = [&](std::size_t count, std::int64_t length) {
    return advise(mamba_shape_named("1.4b"), options, std::vector<Document>(count, Document{length, {}}), {})
        .is_sample_small();
  };
  // 16,311 tokens fit: 15 rows of 1,024 in a step, 153,600 in ten.
  EXPECT_TRUE(is_small(3, 1024));
  EXPECT_TRUE(is_small(99, 2048));
  EXPECT_TRUE(is_small(149, 1024));
  EXPECT_FALSE(is_small(150, 1024));
}

TEST(Advice, SaysWhatDoesNotFitAndWhatIsUnknown) {
  MemoryOptions options;
  options.gpu_gigabytes = 50;
  EXPECT_EQ(
      refusal("2.8b", options).substr(0, 122),
      "plan: a row of 512 tokens does not fit: of 50.0 GB, 5.0 GB are in reserve, 44.3 GB go to weights, gradients "
      "and optimizer,");
  EXPECT_EQ(
      refusal("9b", options),
      "plan: there is no model '9b'; the models are 130m, 370m, 790m, 1.4b, 2.8b, others are given by --layers and "
      "--d-model");
  options.optimizer = "lion";
  EXPECT_EQ(refusal("130m", options), "plan: there is no optimizer 'lion'; the optimizers are adamw, adamw-8bit, sgd");
  options.optimizer = "adamw";
  options.gpu_gigabytes = 0;
  EXPECT_NE(refusal("130m", options).find("GPU memory must be above 0"), std::string::npos);
  options.gpu_gigabytes = 80;
  options.reserve = 1;
  EXPECT_NE(refusal("130m", options).find("the reserve must be a share from 0 to below 1"), std::string::npos);
}

}  // namespace
}  // namespace packjit
