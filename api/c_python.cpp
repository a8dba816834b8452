// The C interface: calls from Python.
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "api/dlpack.hpp"
#include "api/handles.hpp"
#include "runtime/errors.hpp"

namespace {

using packjit::Operator;
using packjit::api::GivenTensors;
using packjit::api::guarded;
using packjit::api::Lane;
using packjit::api::require;
namespace dlpack = packjit::api::dlpack;

/// As much as a call needs of the interpreter that this process runs.
struct Interpreter {
  long (*to_integer)(void* object);   // where it is none, -1 with a Python exception set
  void* (*to_address)(void* object);  // the same, with null
  void* (*from_integer)(long number);
  void* (*exception)();  // null where none is set
  void* (*save_thread)();
  void (*restore_thread)(void* thread);
  void* none;
};

/// Found by the names that CPython promises to keep, as ctypes.pythonapi finds them; null in a process that runs none.
const Interpreter* interpreter() {
  static const Interpreter kFound = [] {
    const auto find = [](const char* name, auto& to) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(RTLD_DEFAULT, name));
      return to != nullptr;
    };
    Interpreter found{};
    const bool complete = find("PyLong_AsLong", found.to_integer) && find("PyLong_AsVoidPtr", found.to_address) &&
                          find("PyLong_FromLong", found.from_integer) && find("PyErr_Occurred", found.exception) &&
                          find("PyEval_SaveThread", found.save_thread) &&
                          find("PyEval_RestoreThread", found.restore_thread) && find("_Py_NoneStruct", found.none);
    return complete ? found : Interpreter{};
  }();
  return kFound.none != nullptr ? &kFound : nullptr;
}

/// The arguments of a call that say what it does, with their types.
struct Call {
  const Interpreter& python;
  const dlpack::Exchange& exchange;
  Operator op;
  bool fused, any_strides;
  const packjit_map& map;
  std::span<void* const> tensors;
};

/// An argument that is one of few numbers.
std::int32_t number_of(const Interpreter& python, std::span<void* const> arguments, std::size_t which) {
  const long given = python.to_integer(arguments[which]);
  if (python.exception() != nullptr) {
    throw std::invalid_argument(fmt::format("packjit_python_call: argument {} is no integer", which));
  }
  if (given < INT32_MIN || given > INT32_MAX) {
    throw std::invalid_argument(fmt::format("packjit_python_call: argument {} is {}, beyond 32 bits", which, given));
  }
  return static_cast<std::int32_t>(given);
}

Operator operator_of(std::int32_t op, std::int32_t direction) {
  if (op != PACKJIT_CONV1D_PACK && op != PACKJIT_SSM_PACK) {
    throw std::invalid_argument(
        fmt::format("packjit_python_call: op is {}; expected PACKJIT_CONV1D_PACK (1) or PACKJIT_SSM_PACK (2)", op));
  }
  const bool backward = packjit::api::is_backward_direction(direction);
  if (op == PACKJIT_SSM_PACK) return backward ? Operator::ssm_pack_bwd : Operator::ssm_pack_fwd;
  return backward ? Operator::conv1d_pack_bwd : Operator::conv1d_pack_fwd;
}

Call call_of(const Interpreter& python, std::span<void* const> arguments) {
  constexpr std::size_t kBeforeTensors = 6;
  if (arguments.size() < kBeforeTensors) {
    throw std::invalid_argument(fmt::format("packjit_python_call: {} arguments were given, expected {} and the tensors",
                                            arguments.size(), kBeforeTensors));
  }
  const auto* exchange = static_cast<const dlpack::Exchange*>(python.to_address(arguments[0]));
  require(exchange, "packjit_python_call", "exchange");
  if (exchange->version.major != dlpack::kMajorVersion || exchange->describe == nullptr) {
    throw std::invalid_argument(
        fmt::format("packjit_python_call: exchange is of DLPack version {}.{}{}; expected version 1 with "
                    "dltensor_from_py_object_no_sync",
                    exchange->version.major, exchange->version.minor,
                    exchange->describe == nullptr ? " and cannot describe tensors" : ""));
  }
  const Operator op = operator_of(number_of(python, arguments, 1), number_of(python, arguments, 2));
  const auto* map = static_cast<const packjit_map*>(python.to_address(arguments[5]));
  require(map, "packjit_python_call", "map");
  const std::span<void* const> tensors = arguments.subspan(kBeforeTensors);
  if (const std::size_t expected = packjit::tensor_rules(op).size(); tensors.size() != expected) {
    throw std::invalid_argument(
        fmt::format("packjit_python_call: {} tensors were given, expected {}, with None for those that there are not",
                    tensors.size(), expected));
  }
  return {python, *exchange, op, number_of(python, arguments, 3) != 0, number_of(python, arguments, 4) != 0,
          *map,   tensors};
}

/// 0 for dtypes that no operator takes.
std::int32_t c_dtype(const dlpack::DataType& type) {
  struct Known {
    std::uint8_t code, bits;
    std::int32_t dtype;
  };
  constexpr Known kKnown[] = {{dlpack::kBfloat, 16, PACKJIT_BF16},     {dlpack::kFloat, 32, PACKJIT_FP32},
                              {dlpack::kFloat, 16, PACKJIT_FP16},      {dlpack::kInteger, 16, PACKJIT_INT16},
                              {dlpack::kUnsigned, 16, PACKJIT_UINT16}, {dlpack::kInteger, 32, PACKJIT_INT32},
                              {dlpack::kInteger, 64, PACKJIT_INT64},   {dlpack::kComplex, 64, PACKJIT_COMPLEX64}};
  for (const Known& known : kKnown) {
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return known.dtype;
  }
  return 0;
}

bool has_dense_dimension(const packjit_tensor& tensor) {
  for (std::int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1 && tensor.stride[i] == 1) return true;
  }
  return false;
}

/// The tensors of one call as the C interface has them. They stay valid while the arguments do.
class CallTensors {
 public:
  explicit CallTensors(const Call& call) {
    for (const packjit::TensorRule& rule : packjit::tensor_rules(call.op)) {
      void* object = call.tensors[count_];
      const bool none = object == call.python.none;
      if (count_ == 0 && none) throw std::invalid_argument(fmt::format("tensor {}: None was given", rule.name));
      pointers_.at(count_) = none ? nullptr : read(call, object, rule.name);
      ++count_;
    }
  }
  [[nodiscard]] GivenTensors get() const { return {pointers_.data(), count_}; }
  [[nodiscard]] std::int32_t device_type() const { return device_type_; }
  [[nodiscard]] std::int32_t device_id() const { return device_id_; }

 private:
  const packjit_tensor* read(const Call& call, void* object, std::string_view name) {
    dlpack::Tensor found{};
    if (call.exchange.describe(object, &found) != 0) {
      throw std::invalid_argument(fmt::format("tensor {}: it cannot be described", name));
    }
    if (count_ == 0) {
      device_type_ = found.device_type;
      device_id_ = found.device_id;
    }
    if (found.device_type != device_type_ || found.device_id != device_id_) {
      throw std::invalid_argument(
          fmt::format("tensor {}: it is on another device than the first tensor; all of them have to be on one", name));
    }
    packjit_tensor& tensor = tensors_.at(count_);
    if (found.rank < 1 || found.rank > static_cast<std::int32_t>(std::size(tensor.shape))) {
      throw std::invalid_argument(fmt::format("tensor {}: it has {} dimensions, expected 1 to 4", name, found.rank));
    }
    tensor.struct_size = sizeof(tensor);
    tensor.data = static_cast<char*>(found.data) + found.byte_offset;
    tensor.dtype = c_dtype(found.dtype);
    if (tensor.dtype == 0) {
      throw std::invalid_argument(
          fmt::format("tensor {}: DLPack's code {} with {} bits and {} lanes stands for no dtype of an operator; "
                      "expected fp32, fp16, bf16 or complex64",
                      name, found.dtype.code, found.dtype.bits, found.dtype.lanes));
    }
    tensor.rank = found.rank;
    std::copy_n(found.shape, found.rank, tensor.shape);
    std::copy_n(found.strides, found.rank, tensor.stride);
    if (!call.any_strides && !has_dense_dimension(tensor)) {
      throw std::invalid_argument(
          fmt::format("tensor {}: no dimension of it is dense; set any_strides once it is known that its numbers are "
                      "those in memory",
                      name));
    }
    return &tensor;
  }

  std::array<packjit_tensor, packjit::api::kMostTensors> tensors_;  // left as they are beyond what is read
  std::array<const packjit_tensor*, packjit::api::kMostTensors> pointers_;
  std::size_t count_ = 0;
  std::int32_t device_type_ = 0, device_id_ = 0;
};

/// Scratch memory of the tensors' library, for one call: given back once the launches are queued, which is in the order
/// of the stream.
class Scratch {
 public:
  explicit Scratch(const dlpack::Exchange& exchange) : exchange_(exchange) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ != nullptr && memory_->deleter != nullptr) memory_->deleter(memory_);
  }

  void* take(std::size_t bytes, std::int32_t device_type, std::int32_t device_id) {
    if (bytes == 0) return nullptr;
    auto size = static_cast<std::int64_t>(bytes);
    constexpr dlpack::DataType kByte{dlpack::kUnsigned, 8, 1};
    dlpack::Tensor like{nullptr, device_type, device_id, 1, kByte, &size, nullptr, 0};
    std::string error;
    const auto set_error = [](void* to, const char*, const char* message) { *static_cast<std::string*>(to) = message; };
    if (exchange_.allocate(&like, &memory_, &error, set_error) != 0) {
      throw packjit::OutOfMemory(fmt::format("could not take {} bytes of workspace: {}", bytes, error));
    }
    char* data = static_cast<char*>(memory_->tensor.data) + memory_->tensor.byte_offset;
    if (reinterpret_cast<std::uintptr_t>(data) % packjit::api::kWorkspaceAlignment != 0) {
      throw std::invalid_argument(
          fmt::format("packjit_python_call: exchange gave workspace at {}, expected a multiple of {} bytes",
                      fmt::ptr(static_cast<const void*>(data)), packjit::api::kWorkspaceAlignment));
    }
    return data;
  }

 private:
  const dlpack::Exchange& exchange_;
  dlpack::ManagedTensor* memory_ = nullptr;
};

/// Leaves the GIL to others and the thread to take it back with, once the arguments are read.
void run(const Call& call, void*& released) {
  const CallTensors tensors(call);
  const std::int32_t type = tensors.device_type(), id = tensors.device_id();
  if (!call.map.device.backend->holds(type, id)) {
    throw std::invalid_argument("the tensors are on another device than the map: make a map on theirs");
  }
  void* stream = nullptr;
  if (type == dlpack::kCuda && call.exchange.stream(type, id, &stream) != 0) {
    throw std::invalid_argument("packjit_python_call: exchange does not tell the current stream");
  }
  released = call.python.save_thread();
  Scratch scratch(call.exchange);
  // Host execution has its own, with guard zones.
  const auto workspace = [&](Lane& lane, std::size_t bytes) {
    return type == dlpack::kCpu ? lane.workspace(bytes) : scratch.take(bytes, type, id);
  };
  call.map.device.operators.find(call.op, call.fused, tensors.get())
      .run(packjit::is_backward(call.op), stream, *call.map.map, tensors.get(),
           std::ref(workspace));  // a copy would be allocated
}

}  // namespace

extern "C" void* packjit_python_call(void* /*self*/, void* const* arguments, std::int64_t count) {
  const Interpreter* python = interpreter();
  if (python == nullptr) return nullptr;
  void* released = nullptr;
  const packjit_status status = guarded([&] {
    run(call_of(*python, {arguments, static_cast<std::size_t>(count)}), released);
  });
  // Where the interpreter ends meanwhile this may not return, but unwind a daemon thread's stack: nothing above it may
  // catch or be noexcept.
  if (released != nullptr) python->restore_thread(released);
  return status != PACKJIT_OK && python->exception() != nullptr ? nullptr : python->from_integer(status);
}
