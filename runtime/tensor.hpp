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
/// complex64 is two fp32, the real part first.
enum class ElementType { fp32, fp16, bf16, fp64, int16, uint16, int32, int64, complex64 };
[[nodiscard]] std::size_t size_of(ElementType type);       ///< bytes
[[nodiscard]] std::string_view name_of(ElementType type);  ///< "bf16", "int32"
[[nodiscard]] bool is_integer(ElementType type);
[[nodiscard]] ElementType element_type(Dtype dtype);
/// What the elements of a tensor of `rules = tensor_rules(spec)` are.
[[nodiscard]] ElementType element_type(const Spec& spec, const TensorRule& rule);
/// Throws std::invalid_argument naming the type found, for anything that is not fp32, fp16 or bf16.
[[nodiscard]] Dtype dtype_of(ElementType type);

/// The number of elements of a shape: 1 for a scalar's (). Throws std::invalid_argument for a negative size or for more
/// elements than 63 bits count.
[[nodiscard]] std::int64_t count_of(const std::vector<std::int64_t>& shape);

/// A dense row-major tensor in host memory, elements in the machine's byte order. A plain value; concurrent reads are
/// safe.
///
/// Where values are doubles, those of complex64 are two an element, the real part first. The conversions throw
/// std::invalid_argument where `bytes` does not hold as many elements as `shape` says.
struct HostTensor {
  ElementType type = ElementType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  ///< product(shape) * size_of(type)

  [[nodiscard]] std::int64_t count() const;             ///< elements
  [[nodiscard]] std::vector<double> to_double() const;  ///< exact, except that an int64 beyond 2^53 rounds
  /// Integer types only; throws std::invalid_argument naming the type otherwise.
  [[nodiscard]] std::vector<std::int64_t> to_int64() const;
  /// Rounds once, to nearest even: subnormals are kept, what rounds above the largest finite value is infinity, NaN
  /// stays NaN. For integer types the values must be integers in range; throws std::invalid_argument naming the element
  /// otherwise.
  [[nodiscard]] static HostTensor from_double(ElementType type, std::vector<std::int64_t> shape,
                                              const std::vector<double>& values);
  [[nodiscard]] static HostTensor zeros(ElementType type, std::vector<std::int64_t> shape);
};
using HostTensors = std::map<std::string, HostTensor, std::less<>>;
/// "(2, 16, 64)"; "(16)" and "()" for fewer dimensions.
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
