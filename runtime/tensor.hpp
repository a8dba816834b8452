#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"

namespace packjit {

/// Element types that files and host tensors can hold. The first three are those of activations.
enum class ElementType { fp32, fp16, bf16, fp64, int16, uint16, int32, int64 };
[[nodiscard]] std::size_t size_of(ElementType type);       ///< bytes
[[nodiscard]] std::string_view name_of(ElementType type);  ///< "bf16", "int32"
[[nodiscard]] bool is_integer(ElementType type);
[[nodiscard]] ElementType element_type(Dtype dtype);
/// Throws std::invalid_argument naming the type found, for anything that is not fp32, fp16 or bf16.
[[nodiscard]] Dtype dtype_of(ElementType type);

/// A dense row-major tensor in host memory.
struct HostTensor {
  ElementType type = ElementType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  ///< product(shape) * size_of(type)

  [[nodiscard]] std::int64_t count() const;  ///< elements
  [[nodiscard]] std::vector<double> to_double() const;
  /// Integer types only; throws std::invalid_argument naming the type otherwise.
  [[nodiscard]] std::vector<std::int64_t> to_int64() const;
  /// Rounds to nearest even. For integer types the values must be representable.
  [[nodiscard]] static HostTensor from_double(ElementType type, std::vector<std::int64_t> shape,
                                              const std::vector<double>& values);
  [[nodiscard]] static HostTensor zeros(ElementType type, std::vector<std::int64_t> shape);
};
using HostTensors = std::map<std::string, HostTensor, std::less<>>;
/// "(2, 16, 64)"
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

/// A tensor in device memory. Does not own it. Strides in elements, any value, 0 and negative included; strides of
/// size-1 dimensions are ignored. No alignment is demanded beyond the element's.
struct TensorView {
  void* data = nullptr;
  ElementType type = ElementType::fp32;
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> stride;
};
using TensorViews = std::map<std::string, TensorView, std::less<>>;

}  // namespace packjit
