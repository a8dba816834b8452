// The C interface: calls from Python.
#include <array>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "api/c_struct.hpp"
#include "api/dlpack.hpp"
#include "api/handles.hpp"
#include "runtime/errors.hpp"

namespace {

using packjit::Operator;
using packjit::api::GivenTensors;
using packjit::api::guarded;
using packjit::api::Lane;
using packjit::api::read_struct;
using packjit::api::require;
namespace dlpack = packjit::api::dlpack;

/// packjit_python with its types.
struct Call {
  const dlpack::Exchange* exchange;
  void* (*tuple_item)(void* tuple, std::ptrdiff_t index);
  void* (*save_thread)();
  void (*restore_thread)(void* thread);
  void* none;
  Operator op;
  bool fused, any_strides;
};

Operator operator_of(std::int32_t op, std::int32_t direction) {
  if (op != PACKJIT_CONV1D_PACK && op != PACKJIT_SSM_PACK) {
    throw std::invalid_argument(
        fmt::format("packjit_python: op is {}; expected PACKJIT_CONV1D_PACK (1) or PACKJIT_SSM_PACK (2)", op));
  }
  const bool backward = packjit::api::is_backward_direction(direction);
  if (op == PACKJIT_SSM_PACK) return backward ? Operator::ssm_pack_bwd : Operator::ssm_pack_fwd;
  return backward ? Operator::conv1d_pack_bwd : Operator::conv1d_pack_fwd;
}

Call call_of(const packjit_python* given) {
  const packjit_python& python = read_struct(given, "packjit_python");
  for (const void* pointer :
       {python.exchange, python.tuple_item, python.save_thread, python.restore_thread, python.none}) {
    if (pointer == nullptr) throw std::invalid_argument("packjit_python: a member is NULL, all of them are needed");
  }
  const auto* exchange = static_cast<const dlpack::Exchange*>(python.exchange);
  if (exchange->version.major != dlpack::kMajorVersion || exchange->describe == nullptr) {
    throw std::invalid_argument(
        fmt::format("packjit_python: exchange is of DLPack version {}.{}{}; expected version 1 with "
                    "dltensor_from_py_object_no_sync",
                    exchange->version.major, exchange->version.minor,
                    exchange->describe == nullptr ? " and cannot describe tensors" : ""));
  }
  return {exchange,
          reinterpret_cast<void* (*)(void*, std::ptrdiff_t)>(python.tuple_item),
          reinterpret_cast<void* (*)()>(python.save_thread),
          reinterpret_cast<void (*)(void*)>(python.restore_thread),
          python.none,
          operator_of(python.op, python.direction),
          python.fused != 0,
          python.any_strides != 0};
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

/// The tensors of one call as the C interface has them. They stay valid while the tuple does.
class TupleTensors {
 public:
  TupleTensors(const Call& python, void* tuple) {
    for (const packjit::TensorRule& rule : packjit::tensor_rules(python.op)) {
      void* object = python.tuple_item(tuple, static_cast<std::ptrdiff_t>(count_));
      if (count_ == 0 && object == python.none) {
        throw std::invalid_argument(fmt::format("tensor {}: None was given", rule.name));
      }
      pointers_.at(count_) = object == python.none ? nullptr : read(python, object, rule.name);
      ++count_;
    }
  }
  [[nodiscard]] GivenTensors get() const { return {pointers_.data(), count_}; }
  [[nodiscard]] std::int32_t device_type() const { return device_type_; }
  [[nodiscard]] std::int32_t device_id() const { return device_id_; }

 private:
  const packjit_tensor* read(const Call& python, void* object, std::string_view name) {
    dlpack::Tensor found{};
    if (object == nullptr || python.exchange->describe(object, &found) != 0) {
      throw std::invalid_argument(
          fmt::format("tensor {}: {}", name, object == nullptr ? "the tuple is too short" : "it cannot be described"));
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
    if (!python.any_strides && !has_dense_dimension(tensor)) {
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

/// The GIL is somebody else's while it lives.
class WithoutGil {
 public:
  explicit WithoutGil(const Call& python) : python_(python), thread_(python.save_thread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { python_.restore_thread(thread_); }

 private:
  const Call& python_;
  void* thread_;
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
          fmt::format("packjit_python: exchange gave workspace at {}, expected a multiple of {} bytes",
                      fmt::ptr(static_cast<const void*>(data)), packjit::api::kWorkspaceAlignment));
    }
    return data;
  }

 private:
  const dlpack::Exchange& exchange_;
  dlpack::ManagedTensor* memory_ = nullptr;
};

void run(const Call& python, const packjit_map& map, void* tuple) {
  const TupleTensors tensors(python, tuple);
  const std::int32_t type = tensors.device_type(), id = tensors.device_id();
  if (!map.device.backend->holds(type, id)) {
    throw std::invalid_argument("the tensors are on another device than the map: make a map on theirs");
  }
  void* stream = nullptr;
  if (type == dlpack::kCuda && python.exchange->stream(type, id, &stream) != 0) {
    throw std::invalid_argument("packjit_python: exchange does not tell the current stream");
  }
  const WithoutGil released(python);
  Scratch scratch(*python.exchange);
  // Host execution has its own, with guard zones.
  const auto workspace = [&](Lane& lane, std::size_t bytes) {
    return type == dlpack::kCpu ? lane.workspace(bytes) : scratch.take(bytes, type, id);
  };
  map.device.operators.find(python.op, python.fused, tensors.get())
      .run(packjit::is_backward(python.op), stream, *map.map, tensors.get(),
           std::ref(workspace));  // a copy would be allocated
}

}  // namespace

extern "C" packjit_status packjit_python_call(const packjit_python* python, const packjit_map* map, void* tensors) {
  return guarded([&] {
    require(map, "packjit_python_call", "map");
    require(tensors, "packjit_python_call", "tensors");
    run(call_of(python), *map, tensors);
  });
}
