// The C++ headers, seen by a program that includes nothing else of packjit.
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "packjit/packjit.hpp"

namespace {

using packjit::Code;
using packjit::Conv1dPack;
using packjit::Dtype;
using packjit::Form;
using packjit::SequenceMap;
using packjit::Tensor;

static_assert(std::is_nothrow_destructible_v<packjit::Device> && std::is_move_constructible_v<packjit::Device>);
static_assert(!std::is_copy_constructible_v<packjit::SequenceMap>);

TEST(Cpp, ForwardAndBackwardOfASmallConvolution) {
  auto device = packjit::Device::host();
  ASSERT_TRUE(device) << device.status().message();
  EXPECT_TRUE(device->info()->is_host);
  auto conv = Conv1dPack::create(*device, {.dtype = Dtype::fp32, .bias = false, .silu = false});
  ASSERT_TRUE(conv) << conv.status().message();
  auto preparing = conv->prepare_async({.batch = 1, .seqlen = 8, .dim = 1, .max_sequences = 2, .max_seqlen = 8});
  ASSERT_TRUE(preparing) << preparing.status().message();
  EXPECT_TRUE(preparing->wait().ok());
  EXPECT_TRUE(preparing->ready());

  const std::vector<std::int64_t> offsets = {0, 5, 8};
  auto map = SequenceMap::from_host(*device, Form::cu_seqlens, Tensor(offsets.data(), Dtype::int64, {3}),
                                    {.batch = 1, .seqlen = 8});
  ASSERT_TRUE(map) << map.status().message();
  EXPECT_EQ(map->n_sequences(), 2);
  const std::vector<float> x = {1, 2, 3, 4, 5, 10, 20, 30}, weight = {1, 1, 1, 1};
  std::vector<float> out(8), dx(8), dweight(4);
  const Tensor tx(x.data(), Dtype::fp32, {1, 8, 1}), tw(weight.data(), Dtype::fp32, {1, 4});
  const auto done = conv->forward({.x = tx, .weight = tw, .out = Tensor(out.data(), Dtype::fp32, {1, 8, 1})}, *map);
  ASSERT_TRUE(done) << done.message();
  EXPECT_EQ(out, (std::vector<float>{1, 3, 6, 10, 14, 10, 30, 60}));
  const auto back = conv->backward({.x = tx,
                                    .weight = tw,
                                    .dout = tx,
                                    .dx = Tensor(dx.data(), Dtype::fp32, {1, 8, 1}),
                                    .dweight = Tensor(dweight.data(), Dtype::fp32, {1, 4})},
                                   *map);
  ASSERT_TRUE(back) << back.message();
  EXPECT_EQ(dx, (std::vector<float>{10, 14, 12, 9, 5, 60, 50, 30}));
  // Memory that could not be taken is not the same as none given.
  const auto without_memory = conv->backward({.x = tx,
                                              .weight = tw,
                                              .dout = tx,
                                              .dx = Tensor(dx.data(), Dtype::fp32, {1, 8, 1}),
                                              .dweight = Tensor(dweight.data(), Dtype::fp32, {1, 4})},
                                             *map, {}, {.data = nullptr, .bytes = 80});
  EXPECT_EQ(without_memory.code(), Code::bad_argument);
}

TEST(Cpp, AScanOfOneChannelAndState) {
  auto device = packjit::Device::host();
  ASSERT_TRUE(device);
  auto scan = packjit::SsmPack::create(*device, {.dtype = Dtype::fp32,
                                                 .d_state = 1,
                                                 .softplus = false,
                                                 .D = false,
                                                 .z = false,
                                                 .delta_bias = false,
                                                 .final_states = true});
  ASSERT_TRUE(scan) << scan.status().message();
  auto map = SequenceMap::from_host(*device, Form::rows, {}, {.batch = 2, .seqlen = 3});
  ASSERT_TRUE(map) << map.status().message();
  // A = 0: nothing decays, so the state is the running sum of delta * B * u.
  const std::vector<float> u = {1, 2, 3, 10, 20, 30}, ones(6, 1.0F), zero = {0};
  std::vector<float> out(6), states(2);
  const Tensor wide(ones.data(), Dtype::fp32, {2, 3, 1}), grouped(ones.data(), Dtype::fp32, {2, 3, 1, 1});
  const auto done = scan->forward({.u = Tensor(u.data(), Dtype::fp32, {2, 3, 1}),
                                   .delta = wide,
                                   .A = Tensor(zero.data(), Dtype::fp32, {1, 1}),
                                   .B = grouped,
                                   .C = grouped,
                                   .out = Tensor(out.data(), Dtype::fp32, {2, 3, 1}),
                                   .final_states = Tensor(states.data(), Dtype::fp32, {2, 1, 1})},
                                  *map);
  ASSERT_TRUE(done) << done.message();
  EXPECT_EQ(out, (std::vector<float>{1, 3, 6, 10, 30, 60}));
  EXPECT_EQ(states, (std::vector<float>{6, 60}));
}

TEST(Cpp, FailuresAreValues) {
  auto device = packjit::Device::host();
  ASSERT_TRUE(device);
  auto conv = Conv1dPack::create(*device, {.conv_width = 99});
  EXPECT_FALSE(conv);
  EXPECT_EQ(conv.status().code(), Code::bad_argument);
  EXPECT_NE(conv.status().message().find("99"), std::string::npos);
  EXPECT_DEATH(static_cast<void>(*conv), "99");
  auto good = Conv1dPack::create(*device, {});
  ASSERT_TRUE(good);
  auto shape = good->describe({.batch = 2, .seqlen = 3, .dim = 4, .max_sequences = 5, .max_seqlen = 3},
                              packjit::Directions::forward, "weight");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->tensor.rank, 2);
  EXPECT_EQ(shape->tensor.shape[0], 4);
  EXPECT_EQ(shape->tensor.dtype, PACKJIT_BF16);
  EXPECT_EQ(good->describe({.batch = 2, .seqlen = 3, .dim = 4, .max_sequences = 5, .max_seqlen = 3},
                           packjit::Directions::forward, "z")
                .status()
                .code(),
            Code::bad_argument);
  EXPECT_EQ(good->prepare({}).code(), Code::bad_argument);
  EXPECT_FALSE(SequenceMap::from_host(*device, Form::rows, Tensor(nullptr, Dtype::fp32, {1, 2, 3, 4, 5}),
                                      {.batch = 1, .seqlen = 8}));
  EXPECT_FALSE(SequenceMap::from_host(*device, Form::rows, Tensor(&device, Dtype::fp32, {1 << 30, 1 << 30, 1 << 30, 8}),
                                      {.batch = 1, .seqlen = 8}));
}

}  // namespace
