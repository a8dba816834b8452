// The C interface on host execution: values known beforehand, workspaces, threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <thread>

#include "api/handles.hpp"
#include "tests/api/handles.hpp"

namespace packjit::testing {
namespace {

// The layout that programs are built with. A change here needs another number in the library's name; growing at the end
// does not, but changes a size.
static_assert(sizeof(packjit_device_options) == 16 && sizeof(packjit_device_info) == 168);
static_assert(sizeof(packjit_tensor) == 88 && offsetof(packjit_tensor, shape) == 24 &&
              offsetof(packjit_tensor, stride) == 56);
static_assert(sizeof(packjit_map_options) == 48 && sizeof(packjit_map_info) == 48);
static_assert(sizeof(packjit_operator_options) == 80 && offsetof(packjit_operator_options, d_state) == 32 &&
              offsetof(packjit_operator_options, complex_A) == 72 &&
              offsetof(packjit_operator_options, fp32_weights) == 76);
static_assert(sizeof(packjit_shape) == 64 && offsetof(packjit_shape, caller_workspace) == 60 &&
              sizeof(packjit_workspace) == 24);
static_assert(sizeof(packjit_conv1d_forward_tensors) == 56 && sizeof(packjit_conv1d_backward_tensors) == 88);
static_assert(sizeof(packjit_ssm_forward_tensors) == 104 && sizeof(packjit_ssm_backward_tensors) == 176);

class Host : public ::testing::Test {
 protected:
  DeviceHandle device = open_host();
  SmallConvolution conv;
};

TEST_F(Host, ConvolutionOfTheReadme) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  ASSERT_DONE(conv.run(op.get(), map.get()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
}

TEST_F(Host, AllFormsSayTheSame) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const std::vector<std::int64_t> offsets = {0, 5, 8};
  const std::vector<std::uint16_t> labels = {7, 7, 7, 7, 7, 9, 9, 9};
  const packjit_tensor tensors[] = {tensor(labels.data(), PACKJIT_UINT16, {1, 8}),
                                    tensor(offsets.data(), PACKJIT_INT64, {3})};
  for (const std::int32_t form : {PACKJIT_SEQ_IDX, PACKJIT_CU_SEQLENS}) {
    const packjit_map_options options{sizeof(options), form, PACKJIT_POSITIONS, 1, 8, 0, 0};
    packjit_map* made = nullptr;
    ASSERT_DONE(packjit_map_from_host(device.get(), nullptr, &options, &tensors[form - PACKJIT_SEQ_IDX], &made));
    const MapHandle map(made);
    packjit_map_info info{};
    info.struct_size = sizeof(info);
    ASSERT_DONE(packjit_map_get_info(map.get(), &info));
    EXPECT_EQ(info.n_sequences, 2);
    EXPECT_EQ(info.max_sequences, 2);
    EXPECT_EQ(info.max_seqlen, 5);
    std::ranges::fill(conv.out, -1.0F);
    ASSERT_DONE(conv.run(op.get(), map.get()));
    EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  }
}

TEST_F(Host, LimitsGiveSlotsThatAreNotUsed) {
  const MapHandle map = map_from_positions(device, conv.positions, nullptr, 5, 8);
  packjit_map_info info{};
  info.struct_size = sizeof(info);
  ASSERT_DONE(packjit_map_get_info(map.get(), &info));
  EXPECT_EQ(info.n_sequences, 5);
  EXPECT_EQ(info.max_sequences, 5);
  EXPECT_EQ(info.max_seqlen, 8);
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  ASSERT_DONE(conv.run(op.get(), map.get()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
}

TEST_F(Host, DescribesItself) {
  packjit_device_info info{};
  info.struct_size = sizeof(info);
  ASSERT_DONE(packjit_device_get_info(device.get(), &info));
  EXPECT_EQ(info.is_host, 1);
  EXPECT_STREQ(info.arch, "host");
  EXPECT_STREQ(packjit_status_name(PACKJIT_NOT_PREPARED_IN_CAPTURE), "not_prepared_in_capture");
  EXPECT_STREQ(packjit_status_name(99), "unknown");
}

TEST_F(Host, CheckpointsLieAsFarApartAsTheQuerySays) {
  // docs/design.md, section 2: every 8 tokens, 16 with d_state above 16, 32 above 128, 64 above 256.
  const std::pair<std::int32_t, std::int32_t> kIntervals[] = {{1, 8},    {16, 8},   {17, 16},  {128, 16}, {129, 32},
                                                              {256, 32}, {257, 64}, {512, 64}, {513, 0},  {0, 0}};
  for (const auto& [d_state, interval] : kIntervals) EXPECT_EQ(packjit_checkpoint_interval(d_state), interval);
  packjit_operator_options options{};
  options.op = PACKJIT_SSM_PACK;
  options.d_state = 64;
  options.checkpoints = PACKJIT_ON;
  const OperatorHandle op = make_operator(device, options);
  const packjit_shape shape{sizeof(shape), 2, 100, 8, 1, 4, 100, PACKJIT_TOKEN_MAJOR, 0};
  packjit_tensor checkpoints{};
  checkpoints.struct_size = sizeof(checkpoints);
  ASSERT_DONE(packjit_operator_describe(op.get(), PACKJIT_FORWARD, &shape, "checkpoints", &checkpoints));
  EXPECT_EQ(checkpoints.shape[0], 13);  // 200 / 16 + 1
}

TEST_F(Host, WorkspaceOfTheCallerHasToBeLargeEnoughAndAligned) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const packjit_shape shape{sizeof(shape), 1, 8, 1, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  std::size_t bytes = 1;
  ASSERT_DONE(packjit_operator_workspace_bytes(op.get(), PACKJIT_BACKWARD, &shape, &bytes));
  ASSERT_GT(bytes, 0U);
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
  const packjit_tensor w = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  std::vector<float> dx(8), dw(4);
  const packjit_tensor tdx = tensor(dx.data(), PACKJIT_FP32, {1, 8, 1});
  const packjit_tensor tdw = tensor(dw.data(), PACKJIT_FP32, {1, 4});
  const packjit_conv1d_backward_tensors tensors{sizeof(tensors), &x,   &w,   nullptr, nullptr, &x,
                                                nullptr,         &tdx, &tdw, nullptr, nullptr};
  std::vector<std::byte> memory(bytes + 512);
  void* start = memory.data();
  std::size_t room = memory.size();
  auto* aligned = static_cast<std::byte*>(std::align(256, bytes + 1, start, room));
  packjit_workspace workspace{sizeof(workspace), aligned, bytes - 1};
  EXPECT_EQ(packjit_conv1d_backward(op.get(), nullptr, map.get(), &tensors, &workspace), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says(std::to_string(bytes))) << packjit_last_error();
  workspace = {sizeof(workspace), aligned + 1, bytes};
  EXPECT_EQ(packjit_conv1d_backward(op.get(), nullptr, map.get(), &tensors, &workspace), PACKJIT_BAD_ARGUMENT);
  workspace = {sizeof(workspace), aligned, bytes};
  EXPECT_DONE(packjit_conv1d_backward(op.get(), nullptr, map.get(), &tensors, &workspace));
  // dout = x: dweight[3] is the sum of squares, dx[7] = 30 alone, dx[4] = 5 alone, as the sequence ends there.
  EXPECT_EQ(dw[3], 1 + 4 + 9 + 16 + 25 + 100 + 400 + 900);
  EXPECT_EQ(dw[2], 1 * 2 + 2 * 3 + 3 * 4 + 4 * 5 + 10 * 20 + 20 * 30);
  EXPECT_EQ(dx, (std::vector<float>{10, 14, 12, 9, 5, 60, 50, 30}));
}

TEST_F(Host, AWriteBehindTheWorkspaceIsReportedOnce) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  // The lane goes back with what the next call finds.
  static_cast<char*>(device->backend->enter(nullptr)->workspace(8))[8] = 0;
  EXPECT_EQ(conv.run(op.get(), map.get()), PACKJIT_CHECK_FAILED);
  const std::string said = packjit_last_error();
  EXPECT_EQ(said.find("guard zone damaged: a write past the end of a buffer of 8 bytes, at offset 8"), 0U) << said;
  EXPECT_DONE(conv.run(op.get(), map.get()));
}

TEST_F(Host, EveryThreadHasItsOwnMessage) {
  EXPECT_EQ(packjit_map_build(nullptr, nullptr, nullptr), PACKJIT_BAD_ARGUMENT);
  const std::string mine = packjit_last_error();
  std::thread([] { EXPECT_STREQ(packjit_last_error(), ""); }).join();
  EXPECT_EQ(packjit_last_error(), mine);
}

TEST_F(Host, SixteenThreadsPrepareAndRunAtOnce) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const packjit_shape shape{sizeof(shape), 1, 8, 1, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      EXPECT_DONE(packjit_operator_prepare(op.get(), nullptr, PACKJIT_FORWARD, &shape));
      packjit_task* started = nullptr;
      EXPECT_DONE(packjit_operator_prepare_start(op.get(), nullptr, PACKJIT_FORWARD, &shape, &started));
      const TaskHandle task(started);
      SmallConvolution mine;
      const MapHandle map = map_from_positions(device, mine.positions);
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::ranges::fill(mine.out, -1.0F);
        EXPECT_DONE(mine.run(op.get(), map.get()));
        EXPECT_EQ(mine.out, SmallConvolution::kExpected);
      }
      EXPECT_DONE(packjit_task_wait(task.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Host, K38_HostExecutionGoesOnInAForkedProcess) {
#if defined(PACKJIT_SANITIZE)
  GTEST_SKIP() << "sanitizers do not start threads in a process forked from one that has some";
#endif
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_shape shape{sizeof(shape), 1, 8, 1, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  const auto prepare_and_run = [&] {
    packjit_task* task = nullptr;
    std::ranges::fill(conv.out, -1.0F);
    const bool done = packjit_operator_prepare_start(op.get(), nullptr, PACKJIT_FORWARD, &shape, &task) == PACKJIT_OK &&
                      packjit_task_wait(task) == PACKJIT_OK && conv.run(op.get(), map.get()) == PACKJIT_OK &&
                      conv.out == SmallConvolution::kExpected;
    packjit_task_release(task);
    return done;
  };
  EXPECT_TRUE(prepare_and_run()) << packjit_last_error();  // the worker is there
  const pid_t child = fork();
  if (child == 0) {
    const bool done = prepare_and_run();
    packjit_device_release(device.release());  // would wait for ever for threads of the parent
    _exit(done ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(prepare_and_run());
}

TEST_F(Host, HandlesMayGoWhileAPreparationIsUnderWay) {
  OperatorHandle op = make_operator(device, SmallConvolution::options());
  const packjit_shape shape{sizeof(shape), 1, 8, 1, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  packjit_task* task = nullptr;
  ASSERT_DONE(packjit_operator_prepare_start(op.get(), nullptr, PACKJIT_FORWARD, &shape, &task));
  packjit_task_release(task);
  op.reset();
  device.reset();  // waits
}

}  // namespace
}  // namespace packjit::testing
