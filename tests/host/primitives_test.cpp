// The primitives of templates/device/primitives_host.cuh, called by a kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>

#include "tests/host/host_source.hpp"

namespace packjit::test {

std::string host_primitives() {
  std::ifstream file(PACKJIT_SOURCE_DIR "/templates/device/primitives_host.cuh", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string once = "#pragma once\n";  // the generator drops it, too
  if (text.starts_with(once)) text.erase(0, once.size());
  return "#define FP16 1\n#define DTYPE FP16\n" + text;
}

namespace {

TEST(HostPrimitives, HalfToFloatKnownValues) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { float* out; int n; };
void widen(Argument a) {
  const uint16 given[] = {0x3c00, 0xc000, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8001, 0x7c00, 0xfc00, 0x0000, 0x3555};
  for (int i = 0; i < a.n; ++i) a.out[i] = fp16_to_float(given[i]);
}
)",
                                       {"widen"});
  const auto out = run_kernel<float>(*device, text, {.entry = "widen"}, 11);
  EXPECT_EQ(out, (std::vector<float>{1.0f, -2.0f, 65504.0f, 0x1p-14f, 1023 * 0x1p-24f, 0x1p-24f, -0x1p-24f, INFINITY,
                                     -INFINITY, 0.0f, 0.333251953125f}));
}

TEST(HostPrimitives, FloatToHalfRoundsToNearestEven) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { uint16* out; int n; };
void narrow(Argument a) {
  const float given[] = {1.0f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 1.0f + 0x1.002p-11f, 65504.0f, 65519.99f, 65520.0f,
                         0x1p-24f, 0x1p-25f, 0x1.001p-25f, -3 * 0x1p-25f, 0x1.ffcp-15f, 0x1.fffp-15f,
                         -__builtin_inff(), __builtin_nanf(""), -0.0f, 2047.0f / 2048};
  for (int i = 0; i < a.n; ++i) a.out[i] = float_to_fp16(given[i]);
}
)",
                                       {"narrow"});
  const auto out = run_kernel<std::uint16_t>(*device, text, {.entry = "narrow"}, 17);
  EXPECT_EQ(out, (std::vector<std::uint16_t>{0x3c00, 0x3c00, 0x3c02, 0x3c01, 0x7bff, 0x7bff, 0x7c00,  //
                                             0x0001, 0x0000, 0x0001, 0x8002, 0x0400, 0x0400,          //
                                             0xfc00, 0x7fff, 0x8000, 0x3bff}));
}

TEST(HostPrimitives, PairsOfHalvesHaveTheFirstInTheLowerBits) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { uint32* out; int n; };
void pairs(Argument a) {
  const uint32 word[4] = {float_to_half_pair(1.0f, -2.0f), float_to_half_pair(-0.0f, 65520.0f), 3, 4};
  store_words(a.out, word);
}
)",
                                       {"pairs"});
  const auto out = run_kernel<std::uint32_t>(*device, text, {.entry = "pairs"}, 4);
  EXPECT_EQ(out, (std::vector<std::uint32_t>{0xc0003c00, 0x7c008000, 3, 4}));
}

TEST(HostPrimitives, EveryHalfSurvivesTheWayThroughFloat) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { uint16* out; int n; };
void round_trip(Argument a) {
  for (int i = 0; i < a.n; ++i) a.out[i] = float_to_fp16(fp16_to_float(uint16(i)));
}
)",
                                       {"round_trip"});
  const auto out = run_kernel<std::uint16_t>(*device, text, {.entry = "round_trip"}, 65536);
  for (unsigned i = 0; i < 65536; ++i) {
    const bool nan = (i & 0x7fff) > 0x7c00;
    ASSERT_EQ(out[i], nan ? 0x7fff : i) << i;
  }
}

TEST(HostPrimitives, ExponentialReciprocalAndFusedMultiplyAdd) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { float* out; int n; };
void numbers(Argument a) {
  a.out[0] = exp2_flush(-3.0f);
  a.out[1] = exp2_flush(-127.0f);
  a.out[2] = exp2_full(-127.0f);
  a.out[3] = reciprocal(4.0f);
  a.out[4] = fused_multiply_add(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -1.0f - 0x1p-11f);
  a.out[5] = (1.0f + a.out[4] * 0.0f + 0x1p-12f) * (1.0f + 0x1p-12f) - (1.0f + 0x1p-11f);
}
)",
                                       {"numbers"});
  // The last shows that a product and a sum are not contracted: the square's last bit is lost.
  EXPECT_EQ(run_kernel<float>(*device, text, {.entry = "numbers"}, 6),
            (std::vector<float>{0.125f, 0.0f, 0x1p-127f, 0.25f, 0x1p-24f, 0.0f}));
}

TEST(HostPrimitives, AbsoluteAndMinimum) {
  const auto device = open_host_device();
  const std::string text = host_source(R"(
struct Argument { float* out; int n; };
void sizes(Argument a) {
  const float nan = __builtin_nanf("");
  a.out[0] = absolute(-2.5f);
  a.out[1] = 1.0f / absolute(-0.0f);
  a.out[2] = absolute(nan) == absolute(nan);
  a.out[3] = minimum(-1.0f, 2.0f);
  a.out[4] = minimum(nan, 88.0f);
  a.out[5] = minimum(88.0f, nan);
}
)",
                                       {"sizes"});
  EXPECT_EQ(run_kernel<float>(*device, text, {.entry = "sizes"}, 6),
            (std::vector<float>{2.5f, INFINITY, 0.0f, -1.0f, 88.0f, 88.0f}));
}

}  // namespace
}  // namespace packjit::test
