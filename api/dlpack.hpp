#pragma once

#include <cstdint>

/// As much of DLPack's C interface (version 1.x) as it takes to read tensors of a Python library, and to take memory
/// from it, by its table of functions. Layouts are fixed by DLPack.
namespace packjit::api::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::int32_t kCpu = 1, kCuda = 2;  // types of devices
inline constexpr std::uint8_t kInteger = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kComplex = 5;

struct Version {
  std::uint32_t major, minor;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements
  std::uint64_t byte_offset;
};
/// With the memory that it describes; `deleter` gives both back.
struct ManagedTensor {
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};
/// What a tensor type has as `__dlpack_c_exchange_api__`. Functions give 0, or -1 with a Python exception set.
struct Exchange {
  Version version;
  const Exchange* older;
  /// Of `like`, dtype, shape and device count. Does not need the GIL; an error goes to `set_error`.
  int (*allocate)(Tensor* like, ManagedTensor** made, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*take)(void* object, ManagedTensor** made);
  int (*give)(ManagedTensor* tensor, void** object);
  /// Valid while the object is, and nobody changes it. Needs the GIL. May be null.
  int (*describe)(void* object, Tensor* tensor);
  int (*stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

}  // namespace packjit::api::dlpack
