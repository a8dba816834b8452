// The C interface on host execution: values known beforehand, misuse, threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <thread>

#include "api/handles.hpp"
#include "tests/api/handles.hpp"

namespace packjit::testing {
namespace {

bool says(const std::string& what) { return std::string(packjit_last_error()).find(what) != std::string::npos; }

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

TEST_F(Host, BadBoundariesNameTheToken) {
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

TEST_F(Host, NoFormIsNeverOneLongSequence) {
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

TEST_F(Host, MisuseIsNamedAndLeavesTheHandlesAsTheyWere) {
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

TEST_F(Host, BoundariesThatAreNotOnTheirAlignmentAreRefused) {
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
TEST_F(Host, AComplexTensorNeedsAFloatsAlignment) {
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

TEST_F(Host, OutputsInTheMemoryOfInputsAreRefused) {
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

TEST_F(Host, OutputsWhoseElementsShareMemoryAreRefused) {
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

TEST_F(Host, AMapThatWasNeverBuiltIsRefused) {
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

TEST_F(Host, LimitsOfAMapComeTogether) {
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

TEST_F(Host, NullIsRefusedEverywhere) {
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

TEST_F(Host, OptionsOutOfRangeAreNamed) {
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

TEST_F(Host, StructsOfANewerHeaderAreTakenWhereNothingNewIsSet) {
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

TEST_F(Host, OperatorsMapsAndDevicesHaveToBelongTogether) {
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

TEST_F(Host, AbsurdSizesAreRefused) {
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

TEST_F(Host, StridesBeyondAnyMemoryAreRefused) {
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
