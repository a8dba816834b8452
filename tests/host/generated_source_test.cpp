// What the generator prints for host execution compiles and loads.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "runtime/host/host_device.hpp"

namespace packjit::host {
namespace {

TEST(HostDevice, PreparesAndLoadsEveryOperator) {
  HostDevice device({});
  std::vector<std::pair<Spec, Config>> pairs;
  for (const Operator op : kOperators) pairs.emplace_back(Spec(op), Config(op));
  device.prepare(pairs);
  const std::size_t compiled = host_compiles();
  HostDevice other({HostOrder::Kind::reverse, 0});
  for (const auto& [spec, config] : pairs) {
    const auto module = device.load(spec, config);
    ASSERT_NE(module, nullptr);
    EXPECT_EQ(device.load(spec, config), module);
    EXPECT_EQ(other.load(spec, config), module);
  }
  EXPECT_EQ(host_compiles(), compiled);
}

}  // namespace
}  // namespace packjit::host
