// The program `packjit plan` as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace packjit {
namespace {

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "packjit_plan_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ / "lengths") << "1024\n1024\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int plan(const std::string& arguments) {
    const std::string command = std::string("'") + PACKJIT_PROGRAM + "' plan --lengths '" +
                                (folder_ / "lengths").string() + "' " + arguments + " >'" +
                                (folder_ / "stdout").string() + "' 2>'" + (folder_ / "stderr").string() + "'";
    const int status = std::system(command.c_str());
    output_ = read("stdout");
    errors_ = read("stderr");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder_;
  std::string output_;
  std::string errors_;
};

// The numbers are worked out by hand in test_planning.cpp.
TEST_F(PlanCommand, JsonHasTheArithmetic) {
  ASSERT_EQ(plan("--gpu-memory 80 --model 1.4b --batch 4 --padded-length 2048 --json"), 0) << errors_;
  const auto report = nlohmann::json::parse(output_);
  EXPECT_EQ(report["parameters"]["total"], 1372178432);
  EXPECT_EQ(report["memory"]["token_bytes"], 3068032);
  EXPECT_EQ(report["memory"]["tokens"], 16311);
  EXPECT_EQ(report["pack_length"], 1024);
  EXPECT_EQ(report["rows"], 15);
  EXPECT_DOUBLE_EQ(report["learning_rate_scale"]["linear"].get<double>(), 3.75);
}

TEST_F(PlanCommand, TextShowsEachStep) {
  ASSERT_EQ(plan("--gpu-memory 80 --layers 48 --d-model 2048"), 0) << errors_;
  for (const char* part : {"1,372,178,432", "48 x 26,441,728 + 102,973,440", "21.95 GB", "3,068,032", "16,311",
                           "proposed", "linear rule", "square-root rule", "NVIDIA H200", "--pack-length 1024"}) {
    EXPECT_NE(output_.find(part), std::string::npos) << part;
  }
}

TEST_F(PlanCommand, TheCommandToBeginWithIsQuotedForTheShell) {
  std::filesystem::create_directory(folder_ / "my $(lengths)");
  std::filesystem::rename(folder_ / "lengths", folder_ / "my $(lengths)" / "lengths");
  folder_ /= "my $(lengths)";
  ASSERT_EQ(plan("--gpu-memory 80 --model 1.4b"), 0) << errors_;
  EXPECT_NE(output_.find("--lengths '" + (folder_ / "lengths").string() + "'\n"), std::string::npos) << output_;
  folder_ = folder_.parent_path();
}

TEST_F(PlanCommand, AHandfulOfLengthsIsCalledTooFew) {
  ASSERT_EQ(plan("--gpu-memory 80 --model 1.4b"), 0) << errors_;
  EXPECT_EQ(output_.find("TOO FEW LENGTHS: 2 documents with 2,048 tokens, and a step holds 15,360."), 0U) << output_;
  ASSERT_EQ(plan("--gpu-memory 80 --model 1.4b --json"), 0) << errors_;
  EXPECT_EQ(nlohmann::json::parse(output_)["sample_is_small"], true);
  std::ofstream lengths(folder_ / "lengths");
  for (int i = 0; i < 150; ++i) lengths << "1024\n";
  lengths.close();
  ASSERT_EQ(plan("--gpu-memory 80 --model 1.4b"), 0) << errors_;
  EXPECT_EQ(output_.find("Parameters of a Mamba"), 0U) << output_;
}

TEST_F(PlanCommand, BadInputIsStatus2) {
  for (const char* arguments :
       {"--gpu-memory 80", "--model 1.4b", "--gpu-memory 0 --model 1.4b", "--gpu-memory -1 --model 1.4b",
        "--gpu-memory ten --model 1.4b", "--gpu-memory nan --model 1.4b", "--gpu-memory 10 --model 2.8b",
        "--gpu-memory 80 --model 9b", "--gpu-memory 80 --model 1.4b --layers 3 --d-model 8",
        "--gpu-memory 80 --layers 3", "--gpu-memory 80 --layers 0 --d-model 8",
        "--gpu-memory 80 --model 1.4b --d-state 8", "--gpu-memory 80 --model 1.4b --dtype fp8",
        "--gpu-memory 80 --model 1.4b --keep nothing", "--gpu-memory 80 --model 1.4b --optimizer lion",
        "--gpu-memory 80 --model 1.4b --batch 4", "--gpu-memory 80 --model 1.4b --batch 0 --padded-length 5",
        "--gpu-memory 80 --model 1.4b --reserve 1", "--gpu-memory 80 --model 1.4b --logits-tokens -1"}) {
    EXPECT_EQ(plan(arguments), 2) << arguments << "\n" << errors_;
    EXPECT_EQ(output_, "") << arguments;
    EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1) << arguments << "\n" << errors_;
  }
}

}  // namespace
}  // namespace packjit
