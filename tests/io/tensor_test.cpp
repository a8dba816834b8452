#include "runtime/tensor.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tests/message_of.hpp"

namespace packjit {
namespace {

using test::message_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint16_t half_bits(ElementType type, double value) {
  const HostTensor tensor = HostTensor::from_double(type, {1}, {value});
  std::uint16_t bits;
  std::memcpy(&bits, tensor.bytes.data(), sizeof(bits));
  return bits;
}

std::uint32_t fp32_bits(double value) {
  const HostTensor tensor = HostTensor::from_double(ElementType::fp32, {1}, {value});
  std::uint32_t bits;
  std::memcpy(&bits, tensor.bytes.data(), sizeof(bits));
  return bits;
}

double half_value(ElementType type, std::uint16_t bits) {
  HostTensor tensor = HostTensor::zeros(type, {1});
  std::memcpy(tensor.bytes.data(), &bits, sizeof(bits));
  return tensor.to_double().at(0);
}

TEST(Fp16, KnownEncodings) {
  EXPECT_EQ(half_bits(ElementType::fp16, 0.0), 0x0000);
  EXPECT_EQ(half_bits(ElementType::fp16, -0.0), 0x8000);
  EXPECT_EQ(half_bits(ElementType::fp16, 1.0), 0x3c00);
  EXPECT_EQ(half_bits(ElementType::fp16, -2.0), 0xc000);
  EXPECT_EQ(half_bits(ElementType::fp16, 65504.0), 0x7bff);
  EXPECT_EQ(half_bits(ElementType::fp16, 0x1p-14), 0x0400);  // smallest normal
  EXPECT_EQ(half_bits(ElementType::fp16, 0x1p-24), 0x0001);  // smallest subnormal
  EXPECT_EQ(half_bits(ElementType::fp16, 0.333251953125), 0x3555);
}

TEST(Fp16, TiesGoToEven) {
  EXPECT_EQ(half_bits(ElementType::fp16, 1.0 + 0x1p-11), 0x3c00);
  EXPECT_EQ(half_bits(ElementType::fp16, 1.0 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(half_bits(ElementType::fp16, 1.0 + 0x1p-11 + 0x1p-52), 0x3c01);  // would be lost by way of fp32
  EXPECT_EQ(half_bits(ElementType::fp16, 0x1p-25), 0x0000);                  // half of the smallest subnormal
  EXPECT_EQ(half_bits(ElementType::fp16, 0x1p-25 * (1 + 0x1p-52)), 0x0001);
  EXPECT_EQ(half_bits(ElementType::fp16, 1.5 * 0x1p-24), 0x0002);
  EXPECT_EQ(half_bits(ElementType::fp16, -0x1p-26), 0x8000);
  EXPECT_EQ(half_bits(ElementType::fp16, 0x1p-14 - 0x1p-25), 0x0400);  // carries from subnormal to normal
}

TEST(Fp16, OverflowIsInfinity) {
  EXPECT_EQ(half_bits(ElementType::fp16, 65519.0), 0x7bff);
  EXPECT_EQ(half_bits(ElementType::fp16, 65520.0), 0x7c00);
  EXPECT_EQ(half_bits(ElementType::fp16, 1e300), 0x7c00);
  EXPECT_EQ(half_bits(ElementType::fp16, -kInfinity), 0xfc00);
}

TEST(Fp16, NanStaysNan) {
  const std::uint16_t bits = half_bits(ElementType::fp16, std::nan(""));
  EXPECT_EQ(bits & 0x7e00, 0x7e00);
  EXPECT_TRUE(std::isnan(half_value(ElementType::fp16, 0x7c01)));
}

TEST(Fp16, Widens) {
  EXPECT_EQ(half_value(ElementType::fp16, 0x0001), 0x1p-24);
  EXPECT_EQ(half_value(ElementType::fp16, 0x83ff), -1023 * 0x1p-24);
  EXPECT_EQ(half_value(ElementType::fp16, 0x7bff), 65504.0);
  EXPECT_EQ(half_value(ElementType::fp16, 0x7c00), kInfinity);
  EXPECT_TRUE(std::signbit(half_value(ElementType::fp16, 0x8000)));
}

TEST(Bf16, KnownEncodings) {
  EXPECT_EQ(half_bits(ElementType::bf16, 1.0), 0x3f80);
  EXPECT_EQ(half_bits(ElementType::bf16, -1.5), 0xbfc0);
  EXPECT_EQ(half_bits(ElementType::bf16, 3.140625), 0x4049);
  EXPECT_EQ(half_bits(ElementType::bf16, 1.0 + 0x1p-8), 0x3f80);      // tie, down to even
  EXPECT_EQ(half_bits(ElementType::bf16, 1.0 + 3 * 0x1p-8), 0x3f82);  // tie, up to even
  EXPECT_EQ(half_bits(ElementType::bf16, 0x1p-133), 0x0001);          // smallest subnormal
  EXPECT_EQ(half_bits(ElementType::bf16, 0x1.ffp127), 0x7f80);        // rounds to infinity
  EXPECT_EQ(half_bits(ElementType::bf16, 0x1.fep127), 0x7f7f);
  EXPECT_EQ(half_value(ElementType::bf16, 0x0001), 0x1p-133);
}

TEST(Fp32, KnownEncodings) {
  EXPECT_EQ(fp32_bits(1.0), 0x3f800000U);
  EXPECT_EQ(fp32_bits(0.1), 0x3dcccccdU);
  EXPECT_EQ(fp32_bits(0x1p-149), 0x00000001U);
  EXPECT_EQ(fp32_bits(0x1p-150), 0x00000000U);
  EXPECT_EQ(fp32_bits(1e39), 0x7f800000U);
  EXPECT_EQ(fp32_bits(5e-324), 0x00000000U);  // a double subnormal
}

TEST(Fp16, EveryEncodingSurvivesTheRoundTrip) {
  for (const ElementType type : {ElementType::fp16, ElementType::bf16}) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const double value = half_value(type, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) continue;
      ASSERT_EQ(half_bits(type, value), bits) << name_of(type);
    }
  }
}

TEST(HostTensor, IntegersOfEveryWidth) {
  EXPECT_EQ(HostTensor::from_double(ElementType::int16, {2}, {-32768, 32767}).to_int64(),
            (std::vector<std::int64_t>{-32768, 32767}));
  EXPECT_EQ(HostTensor::from_double(ElementType::uint16, {2}, {0, 65535}).to_int64(),
            (std::vector<std::int64_t>{0, 65535}));
  EXPECT_EQ(HostTensor::from_double(ElementType::int32, {1}, {-2147483648.0}).to_int64(),
            (std::vector<std::int64_t>{-2147483648LL}));
  EXPECT_EQ(HostTensor::from_double(ElementType::int64, {1}, {-0x1p63}).to_int64(),
            (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(HostTensor::from_double(ElementType::int16, {1}, {-3}).to_double(), (std::vector<double>{-3.0}));
}

TEST(HostTensor, RefusesIntegersThatDoNotFit) {
  for (const double value : {32768.0, -32769.0, 0.5, kInfinity, std::nan("")}) {
    EXPECT_THROW((void)HostTensor::from_double(ElementType::int16, {1}, {value}), std::invalid_argument) << value;
  }
  EXPECT_THROW((void)HostTensor::from_double(ElementType::int64, {1}, {0x1p63}), std::invalid_argument);
  EXPECT_EQ(message_of([] {
              (void)HostTensor::from_double(ElementType::int16, {2}, {1, 40000});
            }),
            "element 1 is 40000; expected an integer from -32768 to 32767");
}

TEST(HostTensor, CountsAndShapes) {
  EXPECT_EQ(count_of({2, 3, 4}), 24);
  EXPECT_EQ(count_of({}), 1);
  EXPECT_EQ(count_of({std::int64_t{1} << 62, 0, 8}), 0);
  EXPECT_THROW((void)count_of({std::int64_t{1} << 62, 2}), std::invalid_argument);
  EXPECT_THROW((void)count_of({-1}), std::invalid_argument);
  EXPECT_EQ(shape_text({2, 16, 64}), "(2, 16, 64)");
  EXPECT_EQ(shape_text({}), "()");
}

TEST(HostTensor, ComplexNumbersAreTwoValuesAnElement) {
  const HostTensor tensor = HostTensor::from_double(ElementType::complex64, {2, 1}, {1, -2, 0.5, 4});
  EXPECT_EQ(tensor.count(), 2);
  EXPECT_EQ(tensor.bytes.size(), 16U);
  EXPECT_EQ(tensor.to_double(), (std::vector<double>{1, -2, 0.5, 4}));
  EXPECT_EQ(message_of([] {
              (void)HostTensor::from_double(ElementType::complex64, {2}, {1, 2});
            }),
            "a tensor (2) takes 4 values, found 2");
  EXPECT_EQ(message_of([] { (void)dtype_of(ElementType::complex64); }), "expected fp32, fp16 or bf16, found complex64");
}

TEST(HostTensor, RefusesBytesThatDoNotMatchTheShape) {
  HostTensor tensor = HostTensor::zeros(ElementType::fp32, {3});
  tensor.bytes.pop_back();
  EXPECT_EQ(message_of([&] { (void)tensor.to_double(); }),
            "a tensor (3) of fp32 holds 11 bytes; expected 3 elements of 4 bytes");
}

TEST(ElementTypes, NamesAndSizes) {
  EXPECT_EQ(name_of(ElementType::bf16), "bf16");
  EXPECT_EQ(size_of(ElementType::int64), 8U);
  EXPECT_TRUE(is_integer(ElementType::uint16));
  EXPECT_FALSE(is_integer(ElementType::fp64));
  EXPECT_EQ(element_type(Dtype::fp16), ElementType::fp16);
  EXPECT_EQ(dtype_of(ElementType::bf16), Dtype::bf16);
  EXPECT_EQ(message_of([] { (void)dtype_of(ElementType::fp64); }), "expected fp32, fp16 or bf16, found fp64");
  EXPECT_EQ(message_of([] { (void)HostTensor::zeros(ElementType::fp32, {1}).to_int64(); }),
            "expected integers (int16, uint16, int32 or int64), found fp32");
}

}  // namespace
}  // namespace packjit
