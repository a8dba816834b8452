// What the C interface refuses on host execution, and in which words.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/handles.hpp"

namespace packjit::testing {
namespace {

class Refusals : public ::testing::Test {
 protected:
  DeviceHandle device = open_host();
  SmallConvolution conv;
};

TEST(Opening, SaysWhatTheMachineLacks) {
  packjit_device* device = nullptr;
  packjit_device_options options{sizeof(options), PACKJIT_HOST, 0};
  setenv("PACKJIT_HOST_COMPILER", "/no/such/compiler", 1);
  EXPECT_EQ(packjit_device_open(&options, &device), PACKJIT_ENVIRONMENT);
  EXPECT_TRUE(says("/no/such/compiler") && says("PACKJIT_HOST_COMPILER")) << packjit_last_error();
  unsetenv("PACKJIT_HOST_COMPILER");
  EXPECT_EQ(device, nullptr);
  options.kind = 99;
  EXPECT_EQ(packjit_device_open(&options, &device), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("kind is 99")) << packjit_last_error();
  // A GPU that no machine has; on a machine without any, the driver.
  options = {sizeof(options), PACKJIT_GPU, 4096};
  EXPECT_EQ(packjit_device_open(&options, &device), PACKJIT_ENVIRONMENT);
  EXPECT_TRUE(says("no GPU")) << packjit_last_error();
  EXPECT_EQ(device, nullptr);
}

TEST_F(Refusals, BadBoundariesNameTheToken) {
  std::vector<std::int32_t> positions = {0, 1, 5, 3};
  const packjit_tensor values = tensor(positions.data(), PACKJIT_INT32, {1, 4});
  const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 4, 2, 4};
  packjit_map* map = nullptr;
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &options, &values, &map), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(map, nullptr);
  const std::string from_host = packjit_last_error();
  EXPECT_TRUE(says("token 2") && says("5")) << from_host;
  // Built on the device, the same words come from check(), once.
  ASSERT_DONE(packjit_map_create(device.get(), nullptr, &options, PACKJIT_INT32, &map));
  const MapHandle built(map);
  ASSERT_DONE(packjit_map_build(map, nullptr, &values));
  EXPECT_EQ(packjit_map_check(map, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_last_error(), from_host);
  EXPECT_DONE(packjit_map_check(map, nullptr));
}

TEST_F(Refusals, NoFormIsNeverOneLongSequence) {
  const packjit_map_options none{sizeof(none), 0, 0, 1, 8, 0, 0};
  packjit_map* map = nullptr;
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &none, nullptr, &map), PACKJIT_BAD_ARGUMENT);
  const packjit_map_options positions{sizeof(positions), PACKJIT_POSITION_INDICES, 0, 1, 8, 0, 0};
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &positions, nullptr, &map), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("position_indices")) << packjit_last_error();
}

/// A call of the small convolution with one thing wrong.
struct Misuse {
  const char* name;
  void (*spoil)(packjit_conv1d_forward_tensors& tensors, packjit_tensor& x);
  const char* message;
};
const Misuse kMisuses[] = {
    {"wrong dtype", [](auto&, packjit_tensor& x) { x.dtype = PACKJIT_FP16; }, "fp16"},
    {"unknown dtype", [](auto&, packjit_tensor& x) { x.dtype = 77; },
     "tensor x: dtype is 77, which stands for no dtype"},
    {"integers", [](auto&, packjit_tensor& x) { x.dtype = PACKJIT_INT32; }, "int32"},
    {"missing tensor", [](auto& t, packjit_tensor&) { t.x = nullptr; }, "tensor x is missing"},
    {"missing output", [](auto& t, packjit_tensor&) { t.out = nullptr; }, "tensor out is missing"},
    {"tensor that the options lack", [](auto& t, packjit_tensor& x) { t.bias = &x; }, "bias = off"},
    {"no memory", [](auto&, packjit_tensor& x) { x.data = nullptr; }, "data is NULL"},
    {"half an element off", [](auto&, packjit_tensor& x) { x.data = static_cast<char*>(x.data) + 2; },
     "2 bytes past a multiple of 4; fp32 needs an address that is a multiple of 4"},
    {"wrong shape", [](auto&, packjit_tensor& x) { x.shape[1] = 7; }, "(1, 7, 1)"},
    {"wrong rank", [](auto&, packjit_tensor& x) { x.rank = 2; }, "(1, 8)"},
    {"impossible rank", [](auto&, packjit_tensor& x) { x.rank = 9; }, "rank is 9"},
    {"negative size", [](auto&, packjit_tensor& x) { x.shape[2] = -1; }, "-1"},
    {"struct of no size", [](auto& t, packjit_tensor&) { t.struct_size = 0; }, "struct_size is 0"},
    {"struct not initialised",
     [](auto& t, packjit_tensor&) { t.struct_size = std::numeric_limits<std::size_t>::max(); }, "struct_size"},
    {"tensor of no size", [](auto&, packjit_tensor& x) { x.struct_size = 3; }, "struct_size is 3"},
};

TEST_F(Refusals, MisuseIsNamedAndLeavesTheHandlesAsTheyWere) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_tensor weight = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  const packjit_tensor out = tensor(conv.out.data(), PACKJIT_FP32, {1, 8, 1});
  for (const Misuse& misuse : kMisuses) {
    packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
    packjit_conv1d_forward_tensors tensors{sizeof(tensors), &x, &weight, nullptr, nullptr, &out, nullptr};
    misuse.spoil(tensors, x);
    EXPECT_EQ(packjit_conv1d_forward(op.get(), nullptr, map.get(), &tensors, nullptr), PACKJIT_BAD_ARGUMENT)
        << misuse.name;
    EXPECT_TRUE(says(misuse.message)) << misuse.name << ": " << packjit_last_error();
    ASSERT_DONE(conv.run(op.get(), map.get())) << misuse.name;  // use after a failure
    EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  }
}

TEST_F(Refusals, BoundariesThatAreNotOnTheirAlignmentAreRefused) {
  std::vector<std::int64_t> positions = {0, 1, 2, 0, 1};
  const packjit_tensor values = tensor(reinterpret_cast<char*>(positions.data()) + 1, PACKJIT_INT64, {1, 4});
  const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 4, 2, 4};
  const char* expected = "tensor position_indices: data is ";
  packjit_map* map = nullptr;
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &options, &values, &map), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says(expected) && says("1 bytes past a multiple of 8; int64 needs")) << packjit_last_error();
  ASSERT_DONE(packjit_map_create(device.get(), nullptr, &options, PACKJIT_INT64, &map));
  const MapHandle made(map);
  EXPECT_EQ(packjit_map_build(map, nullptr, &values), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says(expected) && says("1 bytes past a multiple of 8; int64 needs")) << packjit_last_error();
}

// Two floats: aligned as a float is.
TEST_F(Refusals, AComplexTensorNeedsAFloatsAlignment) {
  packjit_operator_options options{};
  options.op = PACKJIT_SSM_PACK;
  options.dtype = PACKJIT_FP32;
  options.d_state = 1;
  options.complex_A = PACKJIT_ON;
  options.softplus = options.D = options.z = options.delta_bias = PACKJIT_OFF;
  const OperatorHandle op = make_operator(device, options);
  const MapHandle map = map_from_positions(device, {0});
  const std::vector<float> u = {1.0F}, delta = {0.0F}, pairs = {0.0F, -1.0F, 0.0F, -1.0F}, two = {1.0F, 0.0F};
  std::vector<float> out = {-1.0F};
  const packjit_tensor tu = tensor(u.data(), PACKJIT_FP32, {1, 1, 1}),
                       td = tensor(delta.data(), PACKJIT_FP32, {1, 1, 1}),
                       to = tensor(out.data(), PACKJIT_FP32, {1, 1, 1}),
                       tb = tensor(two.data(), PACKJIT_FP32, {1, 1, 1, 2});
  packjit_ssm_forward_tensors tensors{};
  tensors.struct_size = sizeof(tensors);
  tensors.u = &tu, tensors.delta = &td, tensors.B = &tb, tensors.C = &tb, tensors.out = &to;
  for (const int floats : {0, 1}) {
    const packjit_tensor A = tensor(pairs.data() + floats, PACKJIT_COMPLEX64, {1, 1});
    tensors.A = &A;
    ASSERT_DONE(packjit_ssm_forward(op.get(), nullptr, map.get(), &tensors, nullptr));
    EXPECT_EQ(out, std::vector<float>{0.0F});  // delta is 0
  }
  const packjit_tensor odd = tensor(reinterpret_cast<const char*>(pairs.data()) + 2, PACKJIT_COMPLEX64, {1, 1});
  tensors.A = &odd;
  EXPECT_EQ(packjit_ssm_forward(op.get(), nullptr, map.get(), &tensors, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("tensor A") && says("2 bytes past a multiple of 4")) << packjit_last_error();
}

TEST_F(Refusals, OutputsInTheMemoryOfInputsAreRefused) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_tensor weight = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  const packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
  const std::vector<float> before = conv.x;
  const packjit_conv1d_forward_tensors tensors{sizeof(tensors), &x, &weight, nullptr, nullptr, &x, nullptr};
  EXPECT_EQ(packjit_conv1d_forward(op.get(), nullptr, map.get(), &tensors, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("tensors out and x begin at the same address")) << packjit_last_error();
  EXPECT_EQ(conv.x, before);
}

TEST_F(Refusals, OutputsWhoseElementsShareMemoryAreRefused) {
  const MapHandle map = map_from_positions(device, conv.positions);
  const auto shared = [](packjit_tensor made, std::initializer_list<std::int64_t> strides) {
    std::ranges::copy(strides, made.stride);
    return made;
  };
  std::vector<float> memory(64, 7.0F);
  packjit_operator_options options = SmallConvolution::options();
  options.bias = PACKJIT_ON;
  options.initial_states = options.final_states = PACKJIT_ON;
  const OperatorHandle op = make_operator(device, options);
  const packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
  const packjit_tensor weight = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  const packjit_tensor bias = tensor(conv.weight.data(), PACKJIT_FP32, {1});
  const std::vector<float> history(6, 0.0F);
  const packjit_tensor states = tensor(history.data(), PACKJIT_FP32, {2, 1, 3});
  const auto made = [&](std::size_t offset, std::initializer_list<std::int64_t> shape) {
    return tensor(memory.data() + offset, PACKJIT_FP32, shape);
  };
  const auto refused = [&](const char* name, packjit_status status) {
    EXPECT_EQ(status, PACKJIT_BAD_ARGUMENT) << name;
    EXPECT_TRUE(says(std::string("tensor ") + name + " has shape")) << packjit_last_error();
    EXPECT_TRUE(says("share memory")) << packjit_last_error();
    EXPECT_EQ(memory, std::vector<float>(64, 7.0F)) << name;
  };
  struct Shared {
    const char* name;
    std::initializer_list<std::int64_t> strides;
  };
  for (const Shared& s : std::initializer_list<Shared>{{"out", {8, 0, 1}}, {"final_states", {0, 3, 1}}}) {
    packjit_tensor out = made(0, {1, 8, 1}), final_states = made(16, {2, 1, 3});
    packjit_tensor& spoilt = s.name == std::string("out") ? out : final_states;
    spoilt = shared(spoilt, s.strides);
    const packjit_conv1d_forward_tensors t{sizeof(t), &x, &weight, &bias, &states, &out, &final_states};
    refused(s.name, packjit_conv1d_forward(op.get(), nullptr, map.get(), &t, nullptr));
  }
  for (const Shared& s : std::initializer_list<Shared>{
           {"dx", {8, 0, 1}}, {"dweight", {4, 0}}, {"dinitial_states", {0, 3, 1}}, {"dinitial_states", {1, 3, 1}}}) {
    packjit_tensor dx = made(0, {1, 8, 1}), dweight = made(8, {1, 4}), dbias = made(12, {1});
    packjit_tensor dinitial = made(16, {2, 1, 3});
    packjit_tensor& spoilt = s.name == std::string("dx") ? dx : s.name == std::string("dweight") ? dweight : dinitial;
    spoilt = shared(spoilt, s.strides);
    const packjit_conv1d_backward_tensors t{sizeof(t), &x,  &weight,  &bias,  &states,  &x,
                                            &states,   &dx, &dweight, &dbias, &dinitial};
    refused(s.name, packjit_conv1d_backward(op.get(), nullptr, map.get(), &t, nullptr));
  }
  // Rows one behind the other in time, and backwards: strange, but apart.
  std::vector<float> two(16, 1.0F);
  const packjit_map_options rows{sizeof(rows), PACKJIT_ROWS, PACKJIT_POSITIONS, 2, 8, 0, 0};
  packjit_map* of_rows = nullptr;
  ASSERT_DONE(packjit_map_from_host(device.get(), nullptr, &rows, nullptr, &of_rows));
  const MapHandle row_map(of_rows);
  const OperatorHandle plain = make_operator(device, SmallConvolution::options());
  const packjit_tensor in = tensor(two.data(), PACKJIT_FP32, {2, 8, 1});
  const packjit_tensor out = shared(tensor(memory.data() + 14, PACKJIT_FP32, {2, 8, 1}), {1, -2, 1});
  const packjit_conv1d_forward_tensors t{sizeof(t), &in, &weight, nullptr, nullptr, &out, nullptr};
  ASSERT_DONE(packjit_conv1d_forward(plain.get(), nullptr, row_map.get(), &t, nullptr));
  EXPECT_EQ(std::vector<float>(memory.begin(), memory.begin() + 16),
            (std::vector<float>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 2, 2, 1, 1}));
}

TEST_F(Refusals, AMapThatWasNeverBuiltIsRefused) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 8, 2, 8};
  packjit_map* made = nullptr;
  ASSERT_DONE(packjit_map_create(device.get(), nullptr, &options, PACKJIT_INT32, &made));
  const MapHandle map(made);
  EXPECT_EQ(packjit_map_check(map.get(), nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("packjit_map_build")) << packjit_last_error();
  EXPECT_EQ(conv.run(op.get(), map.get()), PACKJIT_BAD_ARGUMENT);
  const packjit_tensor positions = tensor(conv.positions.data(), PACKJIT_INT32, {1, 8});
  ASSERT_DONE(packjit_map_build(map.get(), nullptr, &positions));
  ASSERT_DONE(packjit_map_check(map.get(), nullptr));
  ASSERT_DONE(conv.run(op.get(), map.get()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
}

TEST_F(Refusals, LimitsOfAMapComeTogether) {
  const packjit_tensor positions = tensor(conv.positions.data(), PACKJIT_INT32, {1, 8});
  const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, 1, 8, 0, 4};
  packjit_map* map = nullptr;
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &options, &positions, &map), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("max_sequences is 0 and max_seqlen is 4; set both, or neither")) << packjit_last_error();
}

TEST(Opening, AnOrdinalIsTheNumberOfAGpu) {
  for (const auto& [kind, ordinal] : {std::pair{PACKJIT_AUTO, -3}, {PACKJIT_GPU, -1}, {PACKJIT_HOST, 5}}) {
    const packjit_device_options options{sizeof(options), kind, ordinal};
    packjit_device* opened = nullptr;
    EXPECT_EQ(packjit_device_open(&options, &opened), PACKJIT_BAD_ARGUMENT);
    EXPECT_TRUE(says("ordinal is " + std::to_string(ordinal))) << packjit_last_error();
  }
}

TEST_F(Refusals, NullIsRefusedEverywhere) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_device_options options{sizeof(options), PACKJIT_HOST, 0};
  EXPECT_EQ(packjit_device_open(&options, nullptr), PACKJIT_BAD_ARGUMENT);
  packjit_device* opened = nullptr;
  EXPECT_EQ(packjit_device_open(nullptr, &opened), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("packjit_device_options is NULL"));
  EXPECT_EQ(packjit_device_get_info(device.get(), nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_map_build(nullptr, nullptr, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_operator_prepare(op.get(), nullptr, PACKJIT_FORWARD, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_conv1d_forward(op.get(), nullptr, map.get(), nullptr, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(conv.run(nullptr, map.get()), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(conv.run(op.get(), nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("map is NULL"));
  EXPECT_EQ(packjit_task_wait(nullptr), PACKJIT_BAD_ARGUMENT);
  packjit_device_release(nullptr);
  packjit_map_release(nullptr);
  packjit_operator_release(nullptr);
  packjit_task_release(nullptr);
}

TEST_F(Refusals, OptionsOutOfRangeAreNamed) {
  const auto refused = [&](auto change) {
    packjit_operator_options options = SmallConvolution::options();
    options.struct_size = sizeof(options);
    change(options);
    packjit_operator* op = nullptr;
    EXPECT_EQ(packjit_operator_create(device.get(), &options, &op), PACKJIT_BAD_ARGUMENT);
    EXPECT_EQ(op, nullptr);
    return std::string(packjit_last_error());
  };
  EXPECT_NE(refused([](auto& o) { o.op = 0; }).find("PACKJIT_SSM_PACK"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.conv_width = 17; }).find("17"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.d_state = 16; }).find("conv1d_pack has no such option"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.silu = 3; }).find("silu is 3"), std::string::npos);
  EXPECT_NE(refused([](auto& o) {
              o.dtype = PACKJIT_INT32;
            }).find("packjit_operator_options: dtype: expected fp32, fp16 or bf16, found int32"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.dtype = 77; }).find("packjit_operator_options: dtype is 77"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.dtype = PACKJIT_COMPLEX64; }).find("complex64"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.complex_A = PACKJIT_ON; }).find("complex_A is 2, but conv1d_pack"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) {
              o = {};
              o.struct_size = sizeof(o);
              o.op = PACKJIT_SSM_PACK;
              o.fp32_weights = PACKJIT_ON;
            }).find("fp32_weights is 2, but ssm_pack"),
            std::string::npos);
  for (auto member : {&packjit_operator_options::complex_A, &packjit_operator_options::constant_B,
                      &packjit_operator_options::constant_C}) {
    const std::string message = refused([&](auto& o) {
      o = {};
      o.struct_size = sizeof(o);
      o.op = PACKJIT_SSM_PACK;
      o.checkpoints = o.*member = PACKJIT_ON;
    });
    EXPECT_NE(message.find("checkpoints = on does not go with"), std::string::npos) << message;
  }
}

TEST_F(Refusals, StructsOfANewerHeaderAreTakenWhereNothingNewIsSet) {
  struct Newer {
    packjit_operator_options known;
    std::int64_t added;
  } options{SmallConvolution::options(), 0};
  options.known.struct_size = sizeof(options);
  packjit_operator* op = nullptr;
  EXPECT_DONE(packjit_operator_create(device.get(), &options.known, &op));
  packjit_operator_release(op);
  options.added = 1;
  EXPECT_EQ(packjit_operator_create(device.get(), &options.known, &op), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("newer library")) << packjit_last_error();
}

TEST_F(Refusals, OperatorsMapsAndDevicesHaveToBelongTogether) {
  const DeviceHandle other = open_host();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle foreign = map_from_positions(other, conv.positions);
  EXPECT_EQ(conv.run(op.get(), foreign.get()), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("another device")) << packjit_last_error();
  packjit_ssm_forward_tensors tensors{};
  tensors.struct_size = sizeof(tensors);
  EXPECT_EQ(packjit_ssm_forward(op.get(), nullptr, foreign.get(), &tensors, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("PACKJIT_CONV1D_PACK")) << packjit_last_error();
}

TEST_F(Refusals, AbsurdSizesAreRefused) {
  packjit_operator_options beyond = SmallConvolution::options();
  beyond.struct_size = sizeof(beyond);
  beyond.map_storage = 9;
  packjit_operator* none = nullptr;
  EXPECT_EQ(packjit_operator_create(device.get(), &beyond, &none), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("packjit_operator_options: map_storage is 9")) << packjit_last_error();
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  packjit_shape shape{sizeof(shape), 1 << 20, 1 << 30, std::int64_t{1} << 40, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  packjit_tensor tensor_of{sizeof(tensor_of), nullptr, 0, 0, {}, {}};
  EXPECT_EQ(packjit_operator_describe(op.get(), PACKJIT_FORWARD, &shape, "x", &tensor_of), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_operator_prepare(op.get(), nullptr, PACKJIT_FORWARD, &shape), PACKJIT_BAD_ARGUMENT);
  shape = {sizeof(shape), 1, 8, 0, 1, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  EXPECT_EQ(packjit_operator_prepare(op.get(), nullptr, PACKJIT_FORWARD, &shape), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("dim is 0")) << packjit_last_error();
  // The gaps between elements alone take more than 63 bits; and what no call takes is not described.
  shape = {sizeof(shape), 1, 1 << 30, std::int64_t{1} << 32, 1, 2, 8, PACKJIT_STRIDED, 0};
  EXPECT_EQ(packjit_operator_describe(op.get(), PACKJIT_FORWARD, &shape, "x", &tensor_of), PACKJIT_BAD_ARGUMENT);
  shape = {sizeof(shape), 1, 8, 4, 3, 2, 8, PACKJIT_TOKEN_MAJOR, 0};
  EXPECT_EQ(packjit_operator_describe(op.get(), PACKJIT_FORWARD, &shape, "x", &tensor_of), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("groups is 3, expected 0 or a number that divides dim (4)")) << packjit_last_error();
  {
    packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, 0, 1, 8, 0, 0};
    const packjit_tensor boundaries =
        tensor(conv.x.data(), PACKJIT_INT32, {std::int64_t{1} << 40, std::int64_t{1} << 40});
    packjit_map* made = nullptr;
    EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &options, &boundaries, &made), PACKJIT_BAD_ARGUMENT);
    options.batch = 2147479551;  // as many rows as can be, and no room for a sequence
    options.seqlen = 1;
    options.max_sequences = options.max_seqlen = 1;
    EXPECT_EQ(packjit_map_create(device.get(), nullptr, &options, PACKJIT_INT32, &made), PACKJIT_BAD_ARGUMENT);
    EXPECT_TRUE(says("a map of 2147479551 rows: expected at most 2147479549")) << packjit_last_error();
  }
#if !defined(PACKJIT_SANITIZE)  // which end a program that asks for so much
  const packjit_map_options rows{sizeof(rows), PACKJIT_ROWS, 0, std::int64_t{1} << 30, std::int64_t{1} << 30, 0, 0};
  packjit_map* map = nullptr;
  EXPECT_EQ(packjit_map_from_host(device.get(), nullptr, &rows, nullptr, &map), PACKJIT_OUT_OF_MEMORY);
  // Memory of the device runs out in host execution, too.
  const packjit_shape huge{sizeof(huge), 1 << 16, 1 << 16, 1 << 22, 1, 1 << 20, 1 << 20, PACKJIT_TOKEN_MAJOR, 0};
  EXPECT_EQ(packjit_operator_prepare(op.get(), nullptr, PACKJIT_BACKWARD, &huge), PACKJIT_OUT_OF_MEMORY)
      << packjit_last_error();
#endif
}

TEST_F(Refusals, StridesBeyondAnyMemoryAreRefused) {
  const OperatorHandle op = make_operator(device, SmallConvolution::options());
  const MapHandle map = map_from_positions(device, conv.positions);
  const packjit_tensor weight = tensor(conv.weight.data(), PACKJIT_FP32, {1, 4});
  const packjit_tensor out = tensor(conv.out.data(), PACKJIT_FP32, {1, 8, 1});
  const auto run_with = [&](std::int64_t stride) {
    packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
    x.stride[1] = stride;
    const packjit_conv1d_forward_tensors tensors{sizeof(tensors), &x, &weight, nullptr, nullptr, &out, nullptr};
    return packjit_conv1d_forward(op.get(), nullptr, map.get(), &tensors, nullptr);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  // Seven times each of them, times 4 bytes, is beyond 63 bits, or comes back as a small number, or is 2^58.
  for (const std::int64_t stride : {kMost, -kMost - 1, kMost / 2, kMost / 4, std::int64_t{1} << 62,
                                    -(std::int64_t{1} << 61), std::int64_t{1} << 56}) {
    EXPECT_EQ(run_with(stride), PACKJIT_BAD_ARGUMENT) << stride;
    EXPECT_TRUE(says("tensor x has shape (1, 8, 1) and strides (8, " + std::to_string(stride) + ", 1)"))
        << packjit_last_error();
  }
  ASSERT_DONE(run_with(1));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  // Strides of dimensions with one element are never used.
  packjit_tensor x = tensor(conv.x.data(), PACKJIT_FP32, {1, 8, 1});
  x.stride[0] = kMost;
  const packjit_conv1d_forward_tensors tensors{sizeof(tensors), &x, &weight, nullptr, nullptr, &out, nullptr};
  EXPECT_DONE(packjit_conv1d_forward(op.get(), nullptr, map.get(), &tensors, nullptr));
}

}  // namespace
}  // namespace packjit::testing
