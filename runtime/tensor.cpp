#include "runtime/tensor.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace packjit {
namespace {

/// A binary floating-point format with IEEE 754's encoding of subnormals, infinities and NaN.
struct FloatFormat {
  int exponent_bits;
  int fraction_bits;
};
constexpr FloatFormat kFp32{8, 23};
constexpr FloatFormat kFp16{5, 10};
constexpr FloatFormat kBf16{8, 7};

constexpr int kDoubleFractionBits = 52;
constexpr int kDoubleBias = 1023;
constexpr std::uint64_t kDoubleMaxExponent = 0x7ff;
constexpr std::uint64_t kDoubleFractionMask = (std::uint64_t{1} << kDoubleFractionBits) - 1;

/// Rounds once, straight from double: going through fp32 would round twice and miss ties.
std::uint32_t narrow(double value, FloatFormat format) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t sign = (bits >> 63) << (format.exponent_bits + format.fraction_bits);
  const std::uint64_t exponent = (bits >> kDoubleFractionBits) & kDoubleMaxExponent;
  const std::uint64_t fraction = bits & kDoubleFractionMask;
  const std::uint64_t infinity = ((std::uint64_t{1} << format.exponent_bits) - 1) << format.fraction_bits;

  if (exponent == kDoubleMaxExponent) {
    if (fraction == 0) return static_cast<std::uint32_t>(sign | infinity);
    const std::uint64_t quiet = std::uint64_t{1} << (format.fraction_bits - 1);
    const std::uint64_t payload = fraction >> (kDoubleFractionBits - format.fraction_bits);
    return static_cast<std::uint32_t>(sign | infinity | quiet | payload);
  }
  // A double subnormal is far below half of the smallest value of every format here.
  if (exponent == 0) return static_cast<std::uint32_t>(sign);

  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int biased = static_cast<int>(exponent) - kDoubleBias + bias;
  if (biased >= (1 << format.exponent_bits) - 1) return static_cast<std::uint32_t>(sign | infinity);

  const std::uint64_t significand = fraction | (std::uint64_t{1} << kDoubleFractionBits);
  const bool subnormal = biased <= 0;
  const int shift = kDoubleFractionBits - format.fraction_bits + (subnormal ? 1 - biased : 0);
  if (shift > kDoubleFractionBits + 1) return static_cast<std::uint32_t>(sign);  // below half of the smallest value

  std::uint64_t rounded = significand >> shift;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;

  // The leading bit of a normal significand is added onto the exponent, so that a carry lands in the next binade and,
  // from the largest one, in infinity.
  std::uint64_t magnitude = rounded;
  if (!subnormal) magnitude += static_cast<std::uint64_t>(biased - 1) << format.fraction_bits;
  return static_cast<std::uint32_t>(sign | magnitude);
}

double widen(std::uint32_t bits, FloatFormat format) {
  const std::uint64_t sign = std::uint64_t{bits >> (format.exponent_bits + format.fraction_bits)} << 63;
  const std::uint32_t max_exponent = (1U << format.exponent_bits) - 1;
  const std::uint32_t exponent = (bits >> format.fraction_bits) & max_exponent;
  const std::uint64_t fraction = bits & ((1U << format.fraction_bits) - 1);
  const std::uint64_t shifted = fraction << (kDoubleFractionBits - format.fraction_bits);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  if (exponent == max_exponent) {
    return std::bit_cast<double>(sign | (kDoubleMaxExponent << kDoubleFractionBits) | shifted);
  }
  if (exponent == 0) {
    const double magnitude = std::ldexp(static_cast<double>(fraction), 1 - bias - format.fraction_bits);
    return std::bit_cast<double>(sign | std::bit_cast<std::uint64_t>(magnitude));
  }
  const auto biased = static_cast<std::uint64_t>(static_cast<int>(exponent) - bias + kDoubleBias);
  return std::bit_cast<double>(sign | (biased << kDoubleFractionBits) | shifted);
}

template <class Element>
Element load(const std::vector<std::byte>& bytes, std::size_t index) {
  Element element;
  std::memcpy(&element, bytes.data() + index * sizeof(Element), sizeof(Element));
  return element;
}

template <class Element>
void store(std::vector<std::byte>& bytes, std::size_t index, Element element) {
  std::memcpy(bytes.data() + index * sizeof(Element), &element, sizeof(Element));
}

/// The number of elements, once it is known that the bytes are all there.
std::size_t checked_count(const HostTensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.count());
  const std::size_t found = tensor.bytes.size();
  if (found / size_of(tensor.type) != count || found % size_of(tensor.type) != 0) {
    throw std::invalid_argument(fmt::format("a tensor {} of {} holds {} bytes; expected {} elements of {} bytes",
                                            shape_text(tensor.shape), name_of(tensor.type), found, count,
                                            size_of(tensor.type)));
  }
  return count;
}

std::int64_t load_integer(const HostTensor& tensor, std::size_t index) {
  switch (tensor.type) {
    case ElementType::int16:
      return load<std::int16_t>(tensor.bytes, index);
    case ElementType::uint16:
      return load<std::uint16_t>(tensor.bytes, index);
    case ElementType::int32:
      return load<std::int32_t>(tensor.bytes, index);
    case ElementType::int64:
      return load<std::int64_t>(tensor.bytes, index);
    default:
      break;
  }
  throw std::invalid_argument(
      fmt::format("expected integers (int16, uint16, int32 or int64), found {}", name_of(tensor.type)));
}

/// Values of an element: a complex one has two.
std::size_t values_of(ElementType type) { return type == ElementType::complex64 ? 2 : 1; }

double load_double(const HostTensor& tensor, std::size_t index) {
  switch (tensor.type) {
    case ElementType::fp32:
    case ElementType::complex64:
      return widen(load<std::uint32_t>(tensor.bytes, index), kFp32);
    case ElementType::fp16:
      return widen(load<std::uint16_t>(tensor.bytes, index), kFp16);
    case ElementType::bf16:
      return widen(load<std::uint16_t>(tensor.bytes, index), kBf16);
    case ElementType::fp64:
      return load<double>(tensor.bytes, index);
    default:
      return static_cast<double>(load_integer(tensor, index));
  }
}

template <class Element>
void store_integer(std::vector<std::byte>& bytes, std::size_t index, double value) {
  using Limits = std::numeric_limits<Element>;
  // 2^digits is exact in double where max() may not be.
  if (!(value >= static_cast<double>(Limits::min()) && value < std::ldexp(1.0, Limits::digits)) ||
      value != std::trunc(value)) {
    throw std::invalid_argument(
        fmt::format("element {} is {}; expected an integer from {} to {}", index, value, Limits::min(), Limits::max()));
  }
  store(bytes, index, static_cast<Element>(value));
}

void store_double(HostTensor& tensor, std::size_t index, double value) {
  switch (tensor.type) {
    case ElementType::fp32:
    case ElementType::complex64:
      return store(tensor.bytes, index, narrow(value, kFp32));
    case ElementType::fp16:
      return store(tensor.bytes, index, static_cast<std::uint16_t>(narrow(value, kFp16)));
    case ElementType::bf16:
      return store(tensor.bytes, index, static_cast<std::uint16_t>(narrow(value, kBf16)));
    case ElementType::fp64:
      return store(tensor.bytes, index, value);
    case ElementType::int16:
      return store_integer<std::int16_t>(tensor.bytes, index, value);
    case ElementType::uint16:
      return store_integer<std::uint16_t>(tensor.bytes, index, value);
    case ElementType::int32:
      return store_integer<std::int32_t>(tensor.bytes, index, value);
    case ElementType::int64:
      return store_integer<std::int64_t>(tensor.bytes, index, value);
  }
}

}  // namespace

std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::fp16:
    case ElementType::bf16:
    case ElementType::int16:
    case ElementType::uint16:
      return 2;
    case ElementType::fp32:
    case ElementType::int32:
      return 4;
    case ElementType::fp64:
    case ElementType::int64:
    case ElementType::complex64:
      return 8;
  }
  throw std::invalid_argument(fmt::format("no element type has the value {}", static_cast<int>(type)));
}

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return "fp32";
    case ElementType::fp16:
      return "fp16";
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp64:
      return "fp64";
    case ElementType::int16:
      return "int16";
    case ElementType::uint16:
      return "uint16";
    case ElementType::int32:
      return "int32";
    case ElementType::int64:
      return "int64";
    case ElementType::complex64:
      return "complex64";
  }
  throw std::invalid_argument(fmt::format("no element type has the value {}", static_cast<int>(type)));
}

bool is_integer(ElementType type) {
  return type == ElementType::int16 || type == ElementType::uint16 || type == ElementType::int32 ||
         type == ElementType::int64;
}

ElementType element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return ElementType::fp32;
    case Dtype::fp16:
      return ElementType::fp16;
    case Dtype::bf16:
      return ElementType::bf16;
  }
  throw std::invalid_argument(fmt::format("no dtype has the value {}", static_cast<int>(dtype)));
}

ElementType element_type(const Spec& spec, const TensorRule& rule) {
  if (rule.complex) return ElementType::complex64;
  return rule.always_fp32 ? ElementType::fp32 : element_type(static_cast<Dtype>(spec.values["dtype"]));
}

Dtype dtype_of(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return Dtype::fp32;
    case ElementType::fp16:
      return Dtype::fp16;
    case ElementType::bf16:
      return Dtype::bf16;
    default:
      break;
  }
  throw std::invalid_argument(fmt::format("expected fp32, fp16 or bf16, found {}", name_of(type)));
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw std::invalid_argument(fmt::format("a shape {} has a negative size", shape_text(shape)));
    }
    empty = empty || size == 0;
  }
  if (empty) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (count > std::numeric_limits<std::int64_t>::max() / size) {
      throw std::invalid_argument(fmt::format("a shape {} has more elements than 63 bits count", shape_text(shape)));
    }
    count *= size;
  }
  return count;
}

std::int64_t HostTensor::count() const { return count_of(shape); }

std::vector<double> HostTensor::to_double() const {
  std::vector<double> values(checked_count(*this) * values_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_double(*this, i);
  return values;
}

std::vector<std::int64_t> HostTensor::to_int64() const {
  if (!is_integer(type)) {
    throw std::invalid_argument(
        fmt::format("expected integers (int16, uint16, int32 or int64), found {}", name_of(type)));
  }
  std::vector<std::int64_t> values(checked_count(*this));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_integer(*this, i);
  return values;
}

HostTensor HostTensor::from_double(ElementType type, std::vector<std::int64_t> shape,
                                   const std::vector<double>& values) {
  const std::uint64_t expected = static_cast<std::uint64_t>(count_of(shape)) * values_of(type);
  if (expected != values.size()) {
    throw std::invalid_argument(
        fmt::format("a tensor {} takes {} values, found {}", shape_text(shape), expected, values.size()));
  }
  HostTensor tensor = zeros(type, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) store_double(tensor, i, values[i]);
  return tensor;
}

HostTensor HostTensor::zeros(ElementType type, std::vector<std::int64_t> shape) {
  HostTensor tensor{type, std::move(shape), {}};
  const auto count = static_cast<std::size_t>(tensor.count());
  if (count > std::numeric_limits<std::size_t>::max() / 2 / size_of(type)) {
    throw std::invalid_argument(
        fmt::format("a tensor {} of {} does not fit in memory", shape_text(tensor.shape), name_of(type)));
  }
  tensor.bytes.resize(count * size_of(type));
  return tensor;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace packjit
