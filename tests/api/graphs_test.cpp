// What is captured in CUDA graphs, and what they hold, with a driver that runs nothing but is strict.
#include <gtest/gtest.h>

#include <string>

#include "tests/api/fake_gpu.hpp"

namespace packjit::testing {
namespace {

using Graphs = OnAFakeGpu;

TEST_F(Graphs, K37_AMissWhileCapturingIsRefusedAndTheCaptureGoesOn) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  const MapHandle map = map_from_positions(device, kPositions, kStream, 2, 16);
  fake.begin_capture(static_cast<CUstream>(kStream));
  const int launches = fake.counts().launches;
  const int allocations = fake.counts().allocations;
  EXPECT_EQ(scan.forward(op.get(), map.get(), kStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_NE(std::string(packjit_last_error()).find("prepare"), std::string::npos);
  EXPECT_EQ(scan.backward(op.get(), map.get(), kStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  const packjit_shape shape = scan.shape();
  EXPECT_EQ(packjit_operator_prepare(op.get(), kStream, PACKJIT_FORWARD, &shape), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_EQ(packjit_map_check(map.get(), kStream), PACKJIT_OK);  // came from the host: nothing to wait for
  EXPECT_EQ(fake.counts().launches + fake.counts().recorded, launches);
  EXPECT_EQ(fake.counts().allocations, allocations);
  // The default stream would end the capture as well.
  EXPECT_EQ(scan.forward(op.get(), map.get(), nullptr), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
}

TEST_F(Graphs, K37_PreparedCallsCanBeCaptured) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  const packjit_shape shape = scan.shape();
  ASSERT_DONE(packjit_operator_prepare(op.get(), kStream, PACKJIT_FORWARD + PACKJIT_BACKWARD, &shape));
  const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 16, 2, 16};
  packjit_map* made = nullptr;
  ASSERT_DONE(packjit_map_create(device.get(), kStream, &options, PACKJIT_INT32, &made));
  const MapHandle map(made);
  const packjit_tensor boundaries = tensor(kPositions.data(), PACKJIT_INT32, {1, 16});
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_DONE(packjit_map_build(map.get(), kStream, &boundaries));
  EXPECT_DONE(scan.forward(op.get(), map.get(), kStream));
  EXPECT_DONE(scan.backward(op.get(), map.get(), kStream));
  EXPECT_EQ(packjit_map_check(map.get(), kStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);  // it would wait
  EXPECT_EQ(fake.counts().launches, 0);
  EXPECT_GT(fake.counts().recorded, 5);
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
  // On another stream the library's workspace is missing.
  fake.begin_capture(static_cast<CUstream>(kOtherStream));
  EXPECT_EQ(scan.backward(op.get(), map.get(), kOtherStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kOtherStream)));
}

TEST_F(Graphs, K37_PreparingBesideACaptureLeavesItValid) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  const packjit_shape shape = scan.shape();
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_DONE(packjit_operator_prepare(op.get(), kOtherStream, PACKJIT_FORWARD + PACKJIT_BACKWARD, &shape));
  packjit_task* started = nullptr;
  EXPECT_DONE(packjit_operator_prepare_start(op.get(), kOtherStream, PACKJIT_FORWARD, &shape, &started));
  const TaskHandle task(started);
  EXPECT_DONE(packjit_task_wait(task.get()));
  map_from_positions(device, kPositions, kOtherStream).reset();  // gives memory back
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
}

TEST_F(Graphs, AMapReleasedInACaptureLeavesItValidAndItsMemoryToTheGraph) {
  {
    const DeviceHandle device = open(0);
    const OperatorHandle op = make_operator(device, SmallScan::options());
    const SmallScan scan(16);
    MapHandle unused = map_from_positions(device, kPositions, kStream, 2, 16);
    MapHandle used = map_from_positions(device, kPositions, kStream, 2, 16);
    const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 16, 2, 16};
    packjit_map* made = nullptr;
    ASSERT_DONE(packjit_map_create(device.get(), kStream, &options, PACKJIT_INT32, &made));
    MapHandle built(made);
    const packjit_tensor boundaries = tensor(kPositions.data(), PACKJIT_INT32, {1, 16});
    ASSERT_DONE(scan.forward(op.get(), used.get(), kStream));
    fake.begin_capture(static_cast<CUstream>(kStream));
    EXPECT_DONE(packjit_map_build(built.get(), kStream, &boundaries));
    EXPECT_DONE(scan.forward(op.get(), used.get(), kStream));
    const int frees = fake.counts().frees;
    unused.reset();
    const int after_one = fake.counts().frees;
    EXPECT_GT(after_one, frees);
    used.reset();
    EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
    built.reset();  // after it: the graph is to be replayed
    EXPECT_EQ(fake.counts().frees, after_one);
  }
  EXPECT_EQ(fake.counts().frees, fake.counts().allocations);  // the device gave back what graphs held
}

TEST_F(Graphs, WorkspaceThatGraphsMayHoldStaysValid) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan narrow(16, 8), wide(16, 64);
  const MapHandle map = map_from_positions(device, kPositions, kStream);
  EXPECT_DONE(narrow.backward(op.get(), map.get(), kStream));
  const int frees = fake.counts().frees;
  EXPECT_DONE(wide.backward(op.get(), map.get(), kStream));
  EXPECT_EQ(fake.counts().frees, frees);
}

TEST_F(Graphs, WorkspaceOfTheCallerIsEnoughInACapture) {
  const DeviceHandle device = open(0);
  const OperatorHandle op = make_operator(device, SmallScan::options());
  const SmallScan scan(16);
  packjit_shape shape = scan.shape();
  shape.caller_workspace = 1;
  ASSERT_DONE(packjit_operator_prepare(op.get(), kStream, PACKJIT_BACKWARD, &shape));
  EXPECT_EQ(fake.counts().allocations, 0);
  std::size_t bytes = 0;
  ASSERT_DONE(packjit_operator_workspace_bytes(op.get(), PACKJIT_BACKWARD, &shape, &bytes));
  const packjit_workspace workspace{sizeof(workspace), SmallScan::memory, bytes};
  const MapHandle map = map_from_positions(device, kPositions, kStream, 2, 16);
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_EQ(scan.backward(op.get(), map.get(), kStream), PACKJIT_NOT_PREPARED_IN_CAPTURE);
  EXPECT_DONE(scan.backward(op.get(), map.get(), kStream, &workspace));
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
}

}  // namespace
}  // namespace packjit::testing
