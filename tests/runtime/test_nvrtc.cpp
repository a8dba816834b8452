#include "runtime/nvrtc.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "runtime/errors.hpp"
#include "runtime/image_info.hpp"
#include "runtime/nvrtc_search.hpp"

namespace packjit {
namespace {

constexpr const char* kGood = "extern \"C\" __global__ void copy(float* to, const float* from) { *to = *from; }\n";

// Sets an environment variable while it lives.
class WithEnvironment {
 public:
  WithEnvironment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  WithEnvironment(const WithEnvironment&) = delete;
  WithEnvironment& operator=(const WithEnvironment&) = delete;
  ~WithEnvironment() {
    if (before_.empty()) ::unsetenv(name_);
    if (!before_.empty()) ::setenv(name_, before_.c_str(), 1);
  }

 private:
  const char* name_;
  std::string before_;
};

std::string environment_error_of_find() {
  try {
    (void)Nvrtc::find();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return {};
}

TEST(Nvrtc, FindsALibraryThatKnowsHopper) {
  const auto nvrtc = Nvrtc::shared();
  EXPECT_GE(nvrtc->version().major, 12);
  EXPECT_NE(std::find(nvrtc->archs().begin(), nvrtc->archs().end(), "sm_90"), nvrtc->archs().end());
  EXPECT_FALSE(nvrtc->origin().empty());
  EXPECT_EQ(Nvrtc::shared(), nvrtc);
}

TEST(Nvrtc, OneCompileGivesCubinAndPtx) {
  const auto nvrtc = Nvrtc::shared();
  const CompileResult result = compile(*nvrtc, kGood, "sm_90");
  ASSERT_TRUE(result.ok) << result.log;
  EXPECT_EQ(result.cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_NE(result.ptx.find(".target sm_90"), std::string::npos);
  EXPECT_NE(result.ptx.find("copy"), std::string::npos);
  EXPECT_EQ(result.ptx.find('\0'), std::string::npos);
  EXPECT_EQ(result.options, (std::vector<std::string>{"--gpu-architecture=sm_90", "--std=c++17"}));
  EXPECT_EQ(result.arch, "sm_90");
  EXPECT_EQ(result.nvrtc_version, nvrtc->version_text());
}

TEST(Nvrtc, EveryListedArchitectureCompiles) {
  const auto nvrtc = Nvrtc::shared();
  for (const std::string& arch : nvrtc->archs()) {
    const CompileResult result = compile(*nvrtc, kGood, arch);
    ASSERT_TRUE(result.ok) << arch << "\n" << result.log;
    EXPECT_EQ("sm_" + std::to_string(read_image(result.cubin).arch), arch);
  }
}

TEST(Nvrtc, TheSameSourceGivesTheSameImages) {
  const auto nvrtc = Nvrtc::shared();
  const CompileResult first = compile(*nvrtc, kGood, "sm_80");
  const CompileResult second = compile(*nvrtc, kGood, "sm_80");
  EXPECT_EQ(first.cubin, second.cubin);
  EXPECT_EQ(first.ptx, second.ptx);
}

// K25: a failed compile is a value with its log and the lines it names, and has no image.
TEST(Nvrtc, K25FailedCompileIsAValueThatNamesTheLine) {
  const auto nvrtc = Nvrtc::shared();
  const std::string source =
      "__device__ int fine() { return 1; }\n"
      "\n"
      "extern \"C\" __global__ void broken(float* p) {\n"
      "  *p = undeclared_function(2.0f);\n"
      "}\n";
  const CompileResult result = compile(*nvrtc, source, "sm_90");
  EXPECT_FALSE(result.ok);
  EXPECT_TRUE(result.cubin.empty());
  EXPECT_TRUE(result.ptx.empty());
  ASSERT_EQ(result.failing_lines.size(), 1U);
  EXPECT_EQ(result.failing_lines[0].number, 4);
  EXPECT_EQ(result.failing_lines[0].text, "  *p = undeclared_function(2.0f);");
  EXPECT_NE(result.failing_lines[0].message.find("undeclared_function"), std::string::npos);
  EXPECT_NE(result.log.find("undeclared_function"), std::string::npos);
  const std::string description = describe_failure(result);
  EXPECT_NE(description.find("line 4:   *p = undeclared_function(2.0f);"), std::string::npos) << description;
  EXPECT_NE(description.find("--gpu-architecture=sm_90"), std::string::npos);
  EXPECT_TRUE(compile(*nvrtc, kGood, "sm_90").ok);
}

TEST(Nvrtc, SourceThatIncludesAMissingHeaderIsAFailedCompile) {
  const CompileResult result = compile(*Nvrtc::shared(), "#include \"no_such_header.h\"\n", "sm_90");
  EXPECT_FALSE(result.ok);
  ASSERT_EQ(result.failing_lines.size(), 1U);
  EXPECT_EQ(result.failing_lines[0].number, 1);
}

TEST(Nvrtc, AnUnknownArchitectureIsRefusedWithTheList) {
  const auto nvrtc = Nvrtc::shared();
  for (const char* arch : {"sm_1", "sm_90x", "90", "", "compute_90", "sm_90 --foo"}) {
    try {
      (void)compile(*nvrtc, kGood, arch);
      ADD_FAILURE() << arch << " was accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("sm_90"), std::string::npos) << error.what();
    }
  }
}

TEST(Nvrtc, VerboseCompileReportsSpills) {
  const CompileResult result = compile(*Nvrtc::shared(), kGood, "sm_90", {.verbose = true});
  ASSERT_TRUE(result.ok);
  const auto spills = spills_in_log(result.log);
  ASSERT_EQ(spills.size(), 1U) << result.log;
  EXPECT_EQ(spills[0].kernel, "copy");
  EXPECT_EQ(spills[0].store_bytes, 0);
  EXPECT_EQ(spills[0].load_bytes, 0);
}

TEST(NvrtcSearch, ASettingThatPointsToNothingIsAnEnvironmentError) {
  const WithEnvironment setting("PACKJIT_NVRTC", "/no/such/folder/libnvrtc.so.13");
  const std::string message = environment_error_of_find();
  EXPECT_NE(message.find("/no/such/folder/libnvrtc.so.13"), std::string::npos) << message;
  EXPECT_NE(message.find("PACKJIT_NVRTC"), std::string::npos);
  EXPECT_NE(message.find("nvidia-cuda-nvrtc"), std::string::npos);  // what to do
}

TEST(NvrtcSearch, ALibraryThatIsNotNvrtcIsNamedWithWhatItLacks) {
  const WithEnvironment setting("PACKJIT_NVRTC", "libm.so.6");
  const std::string message = environment_error_of_find();
  EXPECT_NE(message.find("nvrtcGetErrorString"), std::string::npos) << message;
}

TEST(NvrtcSearch, TheSettingIsTheOnlyPlace) {
  const WithEnvironment setting("PACKJIT_NVRTC", "/somewhere/libnvrtc.so.12");
  const auto candidates = nvrtc_candidates();
  ASSERT_EQ(candidates.size(), 1U);
  EXPECT_EQ(candidates[0].path, "/somewhere/libnvrtc.so.12");
}

// K39: folders with blanks and letters outside ASCII.
TEST(NvrtcSearch, K39FindsToolkitsAndWheelsUnderAnyName) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "größe und weite";
  const fs::path toolkit = root / "toolkit";
  const fs::path wheel = root / "venv/lib/python3.12/site-packages/nvidia/cu13/lib";
  fs::create_directories(toolkit / "lib64");
  fs::create_directories(wheel);
  std::ofstream(toolkit / "lib64/libnvrtc.so.12") << "x";
  std::ofstream(toolkit / "lib64/libnvrtc.so.13") << "x";
  std::ofstream(wheel / "libnvrtc.so.13") << "x";
  const WithEnvironment unset("PACKJIT_NVRTC", "");
  const WithEnvironment home("CUDA_HOME", toolkit.string());
  const WithEnvironment venv("VIRTUAL_ENV", (root / "venv").string());
  const auto candidates = nvrtc_candidates();
  ASSERT_FALSE(candidates.empty());
  EXPECT_EQ(candidates[0].origin, "CUDA_HOME");
  EXPECT_EQ(candidates[0].path, (toolkit / "lib64/libnvrtc.so.13").string());
  EXPECT_TRUE(std::any_of(candidates.begin(), candidates.end(), [&](const NvrtcCandidate& candidate) {
    return candidate.origin == "Python wheel" && candidate.path == (wheel / "libnvrtc.so.13").string();
  }));
  fs::remove_all(root);
}

}  // namespace
}  // namespace packjit
