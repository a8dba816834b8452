#include "runtime/image_choice.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

const std::vector<std::string> kArchs = {"sm_75", "sm_80", "sm_90", "sm_120"};

TEST(ImageChoice, TakesTheGpusOwnArchitectureOrTheNewestOlderOne) {
  EXPECT_EQ(arch_for_gpu("sm_90", kArchs, "13.0"), "sm_90");
  EXPECT_EQ(arch_for_gpu("sm_89", kArchs, "13.0"), "sm_80");
  EXPECT_EQ(arch_for_gpu("sm_150", kArchs, "13.0"), "sm_120");
}

TEST(ImageChoice, AGpuOlderThanTheCompilerIsAnEnvironmentError) {
  try {
    (void)arch_for_gpu("sm_61", kArchs, "13.0");
    FAIL() << "accepted";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("sm_61"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("older NVRTC"), std::string::npos);
  }
}

TEST(ImageChoice, ReadsArchitectureNumbers) {
  EXPECT_EQ(arch_number("sm_75"), 75);
  EXPECT_EQ(arch_number("sm_121"), 121);
  for (const char* text : {"", "sm", "sm_", "sm_x", "sm_90a", "90", "compute_90", "sm_99999999999"}) {
    EXPECT_THROW((void)arch_number(text), std::invalid_argument) << text;
  }
}

// K33: a loader that refuses one image, then both.
TEST(ImageChoice, K33FallsBackFromTheCubinToThePtx) {
  CompileResult images;
  images.cubin = "the cubin";
  images.ptx = "the PTX";
  std::vector<std::string> offered;
  const auto that_takes = [&](const std::string& taken) {
    return [&offered, taken](const std::string& image) {
      offered.push_back(image);
      return image == taken;
    };
  };
  EXPECT_EQ(load_first_accepted(images, that_takes("the cubin")), ImageKind::cubin);
  EXPECT_EQ(offered, (std::vector<std::string>{"the cubin"}));
  offered.clear();
  EXPECT_EQ(load_first_accepted(images, that_takes("the PTX")), ImageKind::ptx);
  EXPECT_EQ(offered, (std::vector<std::string>{"the cubin", "the PTX"}));
  EXPECT_EQ(load_first_accepted(images, that_takes("neither")), std::nullopt);
}

// K33: the message says which part is behind.
TEST(ImageChoice, K33NamesADriverOlderThanNvrtc) {
  const std::string message = which_is_behind({{12, 4}, {13, 0}, "Test GPU", "sm_90", kArchs});
  EXPECT_EQ(
      message,
      "driver: CUDA 12.4; NVRTC: 13.0; GPU: Test GPU (sm_90). The driver is behind: it supports CUDA 12.4, older than "
      "NVRTC. Update the driver, or set PACKJIT_NVRTC to an NVRTC of CUDA 12.4 or older.");
}

TEST(ImageChoice, K33NamesAnNvrtcOlderThanTheGpu) {
  const std::string message = which_is_behind({{14, 1}, {13, 0}, "Test GPU", "sm_150", kArchs});
  EXPECT_NE(message.find("NVRTC is behind: it does not know sm_150."), std::string::npos) << message;
}

TEST(ImageChoice, SaysSoWhenNeitherIsBehind) {
  const std::string message = which_is_behind({{13, 0}, {13, 0}, "Test GPU", "sm_90", kArchs});
  EXPECT_NE(message.find("Neither version is behind"), std::string::npos) << message;
}

}  // namespace
}  // namespace packjit
