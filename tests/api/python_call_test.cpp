// Calls from Python, with an interpreter and a tensor library that are made up: objects are tensors or integers.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/dlpack.hpp"
#include "api/handles.hpp"
#include "tests/api/fake_driver.hpp"
#include "tests/api/handles.hpp"

namespace packjit::testing {
namespace {

namespace dlpack = api::dlpack;

void* const kStream = reinterpret_cast<void*>(0x1000);  // NOLINT(performance-no-int-to-ptr)

struct Object {
  dlpack::Tensor tensor{};
  std::vector<std::int64_t> shape, strides;
  bool describable = true;
  bool is_integer = false;
  std::int64_t integer = 0;
};

/// What the functions below see: they take no state.
struct Interpreter {
  bool has_gil = true;
  bool exception = false;  ///< is set
  int without_gil = 0;     ///< stretches
  bool ends = false;       ///< so a thread that wants the GIL back ends, as up to Python 3.13
  bool out_of_memory = false;
  std::int64_t lent = 0;   ///< bytes of workspace that are out
  std::int64_t taken = 0;  ///< all that ever were
  alignas(256) char workspace[1 << 20];
};
Interpreter* interpreter = nullptr;

int describe(void* object, dlpack::Tensor* tensor) {
  EXPECT_TRUE(interpreter->has_gil);
  auto& own = *static_cast<Object*>(object);
  if (!own.describable) return -1;
  own.tensor.shape = own.shape.data();
  own.tensor.strides = own.strides.data();
  *tensor = own.tensor;
  return 0;
}
int allocate(dlpack::Tensor* like, dlpack::ManagedTensor** made, void* context,
             void (*set_error)(void*, const char*, const char*)) {
  if (interpreter->out_of_memory || *like->shape > std::int64_t{sizeof(interpreter->workspace)}) {
    set_error(context, "MemoryError", "no memory is left");
    return -1;
  }
  EXPECT_EQ(like->device_type, dlpack::kCuda);
  interpreter->lent += *like->shape;
  interpreter->taken += *like->shape;
  *made = new dlpack::ManagedTensor{};
  (*made)->context = reinterpret_cast<void*>(*like->shape);  // NOLINT(performance-no-int-to-ptr)
  (*made)->tensor.data = interpreter->workspace;
  (*made)->deleter = [](dlpack::ManagedTensor* own) {
    interpreter->lent -= reinterpret_cast<std::intptr_t>(own->context);
    delete own;
  };
  return 0;
}
int stream_of(std::int32_t, std::int32_t, void** stream) {
  *stream = kStream;
  return 0;
}
const dlpack::Exchange kExchange{{1, 3}, nullptr, allocate, nullptr, nullptr, describe, stream_of};

}  // namespace
}  // namespace packjit::testing

// What the library looks for by these names in the program that has loaded it.
#pragma GCC visibility push(default)
extern "C" {
char _Py_NoneStruct;  // NOLINT(bugprone-reserved-identifier)
long PyLong_AsLong(void* object) {
  using packjit::testing::interpreter;
  EXPECT_TRUE(interpreter->has_gil);
  const auto* own = static_cast<packjit::testing::Object*>(object);
  if (object != &_Py_NoneStruct && own->is_integer) return own->integer;
  interpreter->exception = true;
  return -1;
}
void* PyLong_AsVoidPtr(void* object) {
  const long address = PyLong_AsLong(object);
  return reinterpret_cast<void*>(packjit::testing::interpreter->exception ? 0 : address);
}
void* PyLong_FromLong(long number) {
  EXPECT_TRUE(packjit::testing::interpreter->has_gil);
  return new long(number);
}
void* PyErr_Occurred() { return packjit::testing::interpreter->exception ? &_Py_NoneStruct : nullptr; }
void* PyEval_SaveThread() {
  packjit::testing::interpreter->has_gil = false;
  ++packjit::testing::interpreter->without_gil;
  return packjit::testing::interpreter;
}
void PyEval_RestoreThread(void* thread) {
  EXPECT_EQ(thread, packjit::testing::interpreter);
  packjit::testing::interpreter->has_gil = true;
  if (packjit::testing::interpreter->ends) pthread_exit(nullptr);
}
}
#pragma GCC visibility pop

namespace packjit::testing {
namespace {

constexpr dlpack::DataType kFp32{dlpack::kFloat, 32, 1}, kBf16{dlpack::kBfloat, 16, 1};

class PythonCall : public ::testing::Test {
 protected:
  PythonCall() { interpreter = &state; }
  ~PythonCall() override {
    EXPECT_TRUE(state.has_gil);
    EXPECT_EQ(state.lent, 0);
    interpreter = nullptr;
  }
  void* object(void* data, dlpack::DataType dtype, const std::vector<std::int64_t>& shape,
               std::int32_t device_type = dlpack::kCpu) {
    objects.push_back(std::make_unique<Object>());
    Object& made = *objects.back();
    made.shape = shape;
    made.strides.resize(shape.size());
    std::int64_t next = 1;
    for (std::size_t i = shape.size(); i-- > 0; next *= shape[i]) made.strides[i] = next;
    made.tensor = {data, device_type, gpu, static_cast<std::int32_t>(shape.size()), dtype, nullptr, nullptr, 0};
    return &made;
  }
  void* integer(std::int64_t number) {
    objects.push_back(std::make_unique<Object>());
    objects.back()->is_integer = true;
    objects.back()->integer = number;
    return objects.back().get();
  }
  void* address(const void* of) { return integer(reinterpret_cast<std::intptr_t>(of)); }
  /// What comes before the tensors.
  std::vector<void*> call(std::int64_t op, std::int64_t direction, bool fused, const packjit_map* map) {
    return {address(&exchange),           integer(op), integer(direction), integer(fused ? 1 : 0),
            integer(any_strides ? 1 : 0), address(map)};
  }
  /// x weight bias initial_states out final_states
  std::vector<void*> convolution() {
    return {object(conv.x.data(), kFp32, {1, 8, 1}),
            object(conv.weight.data(), kFp32, {1, 4}),
            kNone,
            kNone,
            object(conv.out.data(), kFp32, {1, 8, 1}),
            kNone};
  }
  /// The status, or nothing where Python has an exception set.
  static std::optional<packjit_status> run(std::vector<void*> arguments, const std::vector<void*>& tensors) {
    arguments.insert(arguments.end(), tensors.begin(), tensors.end());
    const std::unique_ptr<long> status(static_cast<long*>(
        packjit_python_call(nullptr, arguments.data(), static_cast<std::int64_t>(arguments.size()))));
    return status == nullptr ? std::nullopt : std::optional(static_cast<packjit_status>(*status));
  }
  std::optional<packjit_status> run_convolution(const MapHandle& map, const std::vector<void*>& tensors) {
    return run(call(PACKJIT_CONV1D_PACK, PACKJIT_FORWARD, false, map.get()), tensors);
  }
  static bool says(const std::string& what) {
    return std::string(packjit_last_error()).find(what) != std::string::npos;
  }

  std::int32_t gpu = 0;  // of the objects
  Interpreter state;
  dlpack::Exchange exchange = kExchange;
  bool any_strides = false;
  std::vector<std::unique_ptr<Object>> objects;
  SmallConvolution conv;
  static constexpr void* kNone = &_Py_NoneStruct;
};

TEST_F(PythonCall, ComputesWhatTheTensorsSay) {
  const DeviceHandle device = open_host();
  const MapHandle map = map_from_positions(device, conv.positions);
  EXPECT_DONE(run_convolution(map, convolution()));
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
  EXPECT_EQ(state.without_gil, 1);
  // A bias, and a tensor that begins past its memory's beginning: other options and addresses, the same call.
  std::vector<float> bias = {-7, 100};
  std::vector<void*> tensors = convolution();
  tensors[2] = object(bias.data(), kFp32, {1});
  static_cast<Object*>(tensors[2])->tensor.byte_offset = 4;
  EXPECT_EQ(run_convolution(map, tensors), PACKJIT_BAD_ARGUMENT);  // one element says nothing of its memory
  EXPECT_TRUE(says("tensor bias: no dimension of it is dense")) << packjit_last_error();
  any_strides = true;
  EXPECT_DONE(run_convolution(map, tensors));
  EXPECT_EQ(conv.out, (std::vector<float>{101, 103, 106, 110, 114, 110, 130, 160}));
  EXPECT_EQ(state.taken, 0);  // host execution has its own workspace
}

TEST_F(PythonCall, MisuseIsNamedAndTheGilComesBack) {
  const DeviceHandle device = open_host();
  const MapHandle map = map_from_positions(device, conv.positions);
  const auto refused = [&](const std::string& message, auto spoil) {
    std::vector<void*> tensors = convolution();
    spoil(tensors);
    EXPECT_EQ(run_convolution(map, tensors), PACKJIT_BAD_ARGUMENT) << message;
    EXPECT_TRUE(says(message)) << packjit_last_error();
    EXPECT_TRUE(state.has_gil);
  };
  const auto at = [](std::vector<void*>& tensors, std::size_t i) -> Object& {
    return *static_cast<Object*>(tensors[i]);
  };
  refused("tensor x: None", [](auto& t) { t[0] = kNone; });
  refused("tensor weight is missing", [](auto& t) { t[1] = kNone; });
  refused("5 tensors were given, expected 6", [](auto& t) { t.pop_back(); });
  refused("tensor weight: it cannot be described", [&](auto& t) { at(t, 1).describable = false; });
  refused("tensor out: it has 5 dimensions", [&](auto& t) { at(t, 4).tensor.rank = 5; });
  refused("tensor x: it has 0 dimensions", [&](auto& t) { at(t, 0).tensor.rank = 0; });
  refused("tensor weight: it is on another device", [&](auto& t) { at(t, 1).tensor.device_type = dlpack::kCuda; });
  refused("tensor out: DLPack's code 2 with 64 bits and 1 lanes stands for no dtype",
          [&](auto& t) { at(t, 4).tensor.dtype.bits = 64; });
  refused("tensor x: dtype: expected fp32, fp16 or bf16, found int32",
          [&](auto& t) { at(t, 0).tensor.dtype.code = dlpack::kInteger; });
  refused("on another device than the map", [&](auto& t) {
    for (const std::size_t i : {0, 1, 4}) at(t, i).tensor.device_type = dlpack::kCuda;
  });
  refused("tensor out: no dimension of it is dense", [&](auto& t) { at(t, 4).strides[1] = 2; });
  const auto refused_call = [&](const std::string& message, std::vector<void*> arguments) {
    EXPECT_EQ(run(std::move(arguments), convolution()), PACKJIT_BAD_ARGUMENT) << message;
    EXPECT_TRUE(says(message)) << packjit_last_error();
  };
  EXPECT_EQ(run({}, {}), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("0 arguments were given, expected 6 and the tensors")) << packjit_last_error();
  refused_call("map is NULL", call(PACKJIT_CONV1D_PACK, PACKJIT_FORWARD, false, nullptr));
  refused_call("op is 3", call(3, PACKJIT_FORWARD, false, map.get()));
  refused_call("argument 2 is 4294967297, beyond 32 bits",
               call(PACKJIT_CONV1D_PACK, (std::int64_t{1} << 32) + PACKJIT_FORWARD, false, map.get()));
  refused_call("direction is 0", call(PACKJIT_CONV1D_PACK, 0, false, map.get()));
  refused_call("6 tensors were given, expected 12", call(PACKJIT_SSM_PACK, PACKJIT_FORWARD, false, map.get()));
  exchange.version.major = 2;
  refused("DLPack version 2", [](auto&) {});
  EXPECT_EQ(conv.out, std::vector<float>(8, -1.0F));
}

TEST_F(PythonCall, AnExceptionOfPythonIsLeftToPython) {
  const DeviceHandle device = open_host();
  const MapHandle map = map_from_positions(device, conv.positions);
  std::vector<void*> arguments = call(PACKJIT_CONV1D_PACK, PACKJIT_FORWARD, false, map.get());
  for (const std::size_t wrong : {0, 1, 2, 3, 4, 5}) {
    std::vector<void*> spoilt = arguments;
    spoilt[wrong] = kNone;
    EXPECT_EQ(run(spoilt, convolution()), std::nullopt) << wrong;
    state.exception = false;
  }
  EXPECT_EQ(conv.out, std::vector<float>(8, -1.0F));
}

TEST_F(PythonCall, AThreadThatTheInterpreterEndsEndsAlone) {
  const DeviceHandle device = open_host();
  const MapHandle map = map_from_positions(device, conv.positions);
  state.ends = true;
  struct Work {
    std::function<void()> call;
    bool returned = false;
  } work;
  work.call = [&] { (void)run_convolution(map, convolution()); };
  pthread_t thread{};
  const auto begin = [](void* given) -> void* {
    auto& own = *static_cast<Work*>(given);
    own.call();
    own.returned = true;
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, begin, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_FALSE(work.returned);
  EXPECT_EQ(conv.out, SmallConvolution::kExpected);
}

/// Backward of a small scan on a GPU that runs nothing.
class PythonCallOnAGpu : public PythonCall {
 protected:
  std::optional<packjit_status> backward(const packjit_map* boundaries) {
    // u delta A B C D z delta_bias initial_states dout dfinal_states checkpoints, gradients of the first nine
    std::vector<void*> tensors;
    const auto add = [&](dlpack::DataType dtype, const std::vector<std::int64_t>& shape) {
      tensors.push_back(object(memory + 256 * tensors.size(), dtype, shape, dlpack::kCuda));
    };
    const std::vector<std::int64_t> wide = {1, 16, 8}, square = {8, 16}, grouped = {1, 16, 1, 16}, flat = {8};
    const auto inputs = [&] {
      add(kBf16, wide), add(kBf16, wide), add(kFp32, square), add(kBf16, grouped), add(kBf16, grouped);
      add(kFp32, flat), add(kBf16, wide), add(kFp32, flat);
      tensors.push_back(kNone);
    };
    inputs();
    add(kBf16, wide);
    tensors.insert(tensors.end(), {kNone, kNone});
    inputs();
    return run(call(PACKJIT_SSM_PACK, PACKJIT_BACKWARD, true, boundaries), tensors);
  }
  FakeDriver fake;
  DeviceHandle device{new packjit_device(api::cuda_backend(fake.driver(), 0, FakeDriver::compiler()))};
  MapHandle map = map_from_positions(device, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5}, kStream, 2, 16);
  alignas(256) static inline char memory[32 * 256];
};

TEST_F(PythonCallOnAGpu, StreamAndWorkspaceAreOfTheTensorsLibrary) {
  const int allocations = fake.counts().allocations;
  ASSERT_DONE(backward(map.get()));
  EXPECT_GT(fake.launches_on(kStream), 0);
  EXPECT_EQ(fake.launches_on(kStream), fake.counts().launches);
  const std::int64_t once = state.taken;
  EXPECT_GT(once, 0);
  EXPECT_EQ(state.lent, 0);
  EXPECT_EQ(fake.counts().allocations, allocations);  // none of the library's own
  fake.begin_capture(static_cast<CUstream>(kStream));
  EXPECT_DONE(backward(map.get()));
  EXPECT_TRUE(fake.end_capture(static_cast<CUstream>(kStream)));
  EXPECT_EQ(state.taken, 2 * once);
}

TEST_F(PythonCallOnAGpu, WithoutMemoryNothingIsLaunched) {
  state.out_of_memory = true;
  EXPECT_EQ(backward(map.get()), PACKJIT_OUT_OF_MEMORY);
  EXPECT_TRUE(says("bytes of workspace: no memory is left")) << packjit_last_error();
  EXPECT_EQ(fake.counts().launches, 0);
}

TEST_F(PythonCallOnAGpu, TensorsOfAnotherGpuAreRefused) {
  gpu = 1;
  EXPECT_EQ(backward(map.get()), PACKJIT_BAD_ARGUMENT);
  EXPECT_TRUE(says("another device than the map")) << packjit_last_error();
}

}  // namespace
}  // namespace packjit::testing
