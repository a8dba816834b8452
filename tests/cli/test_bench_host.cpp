#include <gtest/gtest.h>

#include "api/handles.hpp"
#include "cli/host_step.hpp"
#include "tests/api/fake_driver.hpp"

// What `bench host` does with a driver, on one that runs nothing.
namespace packjit {
namespace {

using testing::FakeDriver;

TEST(HostStep, CallsAreTimedBesideAsManyBareLaunches) {
  FakeDriver fake;
  CUcontext context = nullptr;
  ASSERT_EQ(fake.driver().context_retain(&context, 0), CUDA_SUCCESS);
  FakeDriver::make_current(context);
  CUmodule empty = nullptr;
  ASSERT_EQ(fake.driver().module_load(&empty, "image", 0, nullptr, nullptr), CUDA_SUCCESS);
  const auto open = [](const Driver& driver) {
    return new packjit_device(api::cuda_backend(driver, 0, FakeDriver::compiler()));
  };
  const std::vector<CallCost> costs = call_costs(fake.driver(), empty, open, 1000);
  ASSERT_EQ(costs.size(), 4U);
  std::int64_t launches = 0;
  for (const CallCost& cost : costs) {
    EXPECT_EQ(cost.op, kOperators[&cost - costs.data()]);
    EXPECT_GE(cost.kernels, 1);
    EXPECT_GE(cost.calls, 1000);
    EXPECT_GT(cost.call_ns, 0);
    EXPECT_GT(cost.launch_ns, 0);
    // To find the number of kernels, to warm up, and the timed ones with their bare launches.
    launches += 2 * cost.kernels + 10 * (cost.kernels + 1) + 2 * cost.calls * cost.kernels;
  }
  EXPECT_EQ(costs[0].kernels, 1);  // conv1d_pack_fwd
  EXPECT_EQ(costs[2].kernels, 1);  // ssm_pack_fwd
  EXPECT_EQ(fake.counts().launches, launches);
  EXPECT_EQ(fake.counts().streams_made, fake.counts().streams_destroyed);
  EXPECT_EQ(fake.counts().allocations, fake.counts().frees);
}

}  // namespace
}  // namespace packjit
