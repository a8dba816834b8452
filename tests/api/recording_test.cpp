// Shapes of calls that the library records for the tuner (PACKJIT_CAPTURE).
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "api/handles.hpp"
#include "runtime/capture.hpp"
#include "tests/api/fake_driver.hpp"
#include "tests/api/handles.hpp"
#include "tests/cache/cache_helpers.hpp"

namespace packjit::testing {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::vector<std::int64_t>>;

class Recording : public ::testing::Test {
 public:
  Recording() {
    std::string name = ::testing::TempDir() + "packjit-capture-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder = name;
    file = folder / "shapes.jsonl";
    set_log_callback(records.callback());
  }
  ~Recording() override {
    unsetenv("PACKJIT_CAPTURE");
    set_log_callback({});
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  static void record_in(const fs::path& path) { setenv("PACKJIT_CAPTURE", path.c_str(), 1); }
  [[nodiscard]] std::vector<CapturedShape> recorded() const {
    std::ifstream in(file, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_TRUE(text.ends_with('\n')) << text;
    return parse_capture(text, "the file");
  }

  fs::path folder, file;
  test::Records records;
  SmallConvolution conv;
};

const std::vector<std::int32_t> kFiveAndThree = {0, 1, 2, 3, 4, 0, 1, 2};
const std::vector<std::int32_t> kFourAndTwo = {0, 1, 2, 3, -1, 0, 1, -1};  // with padding between and behind

TEST_F(Recording, ALineForEachNewCallAndNoneForAWarmOne) {
  record_in(file);
  const DeviceHandle device = open_host();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle first = map_from_positions(device, kFiveAndThree), second = map_from_positions(device, kFourAndTwo);
  ASSERT_DONE(conv.run(op.get(), first.get()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  ASSERT_DONE(conv.run(op.get(), second.get()));
  ASSERT_DONE(conv.run(op.get(), first.get()));
  const std::vector<CapturedShape> shapes = recorded();
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_EQ(shapes[0].rows, (Rows{{5, 3}}));
  EXPECT_EQ(shapes[1].rows, (Rows{{4, 2}}));
  for (const CapturedShape& shape : shapes) {
    EXPECT_EQ(shape.spec.op, Operator::conv1d_pack_fwd);
    EXPECT_EQ(shape.spec.values.text("dtype"), "fp32");
    EXPECT_EQ(shape.spec.values.text("bias"), "off");
    EXPECT_EQ(shape.dim, 1);
    EXPECT_EQ(shape.seqlen, 8);
    EXPECT_EQ(shape.calls, 1);
  }
  struct stat found {};
  ASSERT_EQ(stat(file.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  EXPECT_TRUE(records.warnings().empty());
}

TEST_F(Recording, ARowsOrderIsThatOfItsTokens) {
  // Two rows; the map's items are sorted by length, and one slot of four is not used.
  record_in(file);
  const DeviceHandle device = open_host();
  packjit_operator_options options = SmallConvolution::options();
  options.map_storage = PACKJIT_OFFSETS;
  const OperatorHandle op = make_operator(device, options);
  const packjit_map_options map_options{sizeof(map_options), PACKJIT_POSITION_INDICES, PACKJIT_OFFSETS, 2, 4, 4, 3};
  const std::vector<std::int32_t> positions = {0, 0, 1, 2, 0, 1, -1, -1};
  const packjit_tensor boundaries = tensor(positions.data(), PACKJIT_INT32, {2, 4});
  packjit_map* made = nullptr;
  ASSERT_DONE(packjit_map_create(device.get(), nullptr, &map_options, PACKJIT_INT32, &made));
  const MapHandle map(made);
  ASSERT_DONE(packjit_map_build(map.get(), nullptr, &boundaries));
  const packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {2, 4, 1});
  const packjit_tensor weight = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  const packjit_tensor out = tensor(conv.out.data(), PACKJIT_FP32, {2, 4, 1});
  const packjit_conv1d_forward_tensors tensors{sizeof(tensors), &x, &weight, nullptr, nullptr, &out, nullptr};
  ASSERT_DONE(packjit_conv1d_forward(op.get(), nullptr, map.get(), &tensors, nullptr));
  const std::vector<CapturedShape> shapes = recorded();
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_EQ(shapes[0].rows, (Rows{{1, 3}, {2}}));
  EXPECT_EQ(shapes[0].seqlen, 4);
  EXPECT_EQ(shapes[0].spec.values.text("map"), "offsets");
}

TEST_F(Recording, AddsToWhatTheFileHas) {
  record_in(file);
  for (int process = 0; process < 2; ++process) {
    const DeviceHandle device = open_host();
    const OperatorHandle op = make_operator(device, SmallConvolution::options());
    ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFiveAndThree).get()));
  }
  EXPECT_EQ(recorded().size(), 2U);
}

TEST_F(Recording, WhatAnotherProcessLeftUnfinishedCostsNoRecordOfOurs) {
  record_in(file);
  const DeviceHandle device = open_host();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFiveAndThree).get()));
  std::ofstream(file, std::ios::binary | std::ios::app) << R"({"op":"conv1d_pack_fwd","spec":{"dty)";
  ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFourAndTwo).get()));
  const std::vector<CapturedShape> shapes = recorded();
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_EQ(shapes[0].rows, (Rows{{5, 3}}));
  EXPECT_EQ(shapes[1].rows, (Rows{{4, 2}}));
}

TEST_F(Recording, ARelativeFileIsThatOfTheFolderAtOpening) {
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  record_in(file.filename());
  const DeviceHandle device = open_host();
  fs::current_path(before);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFiveAndThree).get()));
  EXPECT_EQ(recorded().size(), 1U);
  EXPECT_FALSE(fs::exists(before / file.filename()));
}

TEST_F(Recording, AFileThatCannotBeWrittenIsOneWarning) {
  file = folder / "missing" / "shapes.jsonl";
  record_in(file);
  const DeviceHandle device = open_host();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle first = map_from_positions(device, kFiveAndThree), second = map_from_positions(device, kFourAndTwo);
  ASSERT_DONE(conv.run(op.get(), second.get()));
  ASSERT_DONE(conv.run(op.get(), first.get()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  EXPECT_EQ(records.warnings(),
            std::vector<std::string>{"cannot record the shapes of calls in '" + file.string() +
                                     "', which PACKJIT_CAPTURE names: No such file or directory. Calls go on, their "
                                     "shapes are not recorded"});
  EXPECT_FALSE(fs::exists(file.parent_path()));
}

TEST_F(Recording, WhatLiesInTheFilesPlaceIsNamed) {
  struct Case {
    const char *target, *words;
  };
  constexpr Case kCases[] = {{"/dev/null", "it is not a regular file"},
                             {nullptr, "it is a link, and links are not followed"}};
  for (const Case& lies : kCases) {
    if (lies.target == nullptr) fs::create_symlink("elsewhere", file);
    const std::string path = lies.target == nullptr ? file.string() : lies.target;
    record_in(path);
    const DeviceHandle device = open_host();
    const OperatorHandle op = make_operator(device, SmallConvolution::options());
    ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFiveAndThree).get()));
    EXPECT_EQ(records.warnings().back(), "cannot record the shapes of calls in '" + path +
                                             "', which PACKJIT_CAPTURE names: " + lies.words +
                                             ". Calls go on, their shapes are not recorded");
  }
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_F(Recording, NothingIsRecordedWithoutTheSetting) {
  const DeviceHandle device = open_host();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFiveAndThree).get()));
  EXPECT_TRUE(fs::is_empty(folder));
  record_in(file);  // for devices that are opened afterwards
  ASSERT_DONE(conv.run(op.get(), map_from_positions(device, kFourAndTwo).get()));
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Recording, ACaptureStaysValidAndIsNotRecorded) {
  record_in(file);
  void* const kStream = reinterpret_cast<void*>(0x1000);  // NOLINT(performance-no-int-to-ptr)
  FakeDriver fake;
  const DeviceHandle device(new packjit_device(api::cuda_backend(fake.driver(), 0, FakeDriver::compiler())));
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const packjit_shape shape{sizeof(shape), 1, 8, 1, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  ASSERT_DONE(packjit_operator_prepare(op.get(), kStream, PACKJIT_FORWARD, &shape));
  const MapHandle map = map_from_positions(device, kFiveAndThree, kStream, 2, 8);
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_DONE(conv.run(op.get(), map.get(), kStream));
  EXPECT_EQ(fake.counts().recorded, 1);
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(records.warnings().empty());
  // The same without a capture, at another length, is a line.
  const MapHandle other = map_from_positions(device, kFourAndTwo, kStream);
  EXPECT_DONE(conv.run(op.get(), other.get(), kStream));
  const std::vector<CapturedShape> shapes = recorded();
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_EQ(shapes[0].rows, (Rows{{4, 2}}));
}

}  // namespace
}  // namespace packjit::testing
