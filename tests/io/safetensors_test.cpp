#include "cli/safetensors.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace packjit {
namespace {

using namespace std::string_literals;

SafetensorsFile parse(std::string_view bytes) { return parse_safetensors(std::as_bytes(std::span(bytes)), "in.st"); }

/// The eight bytes of a header length up to 65,535, spelt out by hand.
std::string length_bytes(std::size_t length) {
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(length & 0xff);
  bytes[1] = static_cast<char>(length >> 8);
  return bytes;
}
std::string file_of(const std::string& header, const std::string& data) {
  return length_bytes(header.size()) + header + data;
}

std::string message_of(std::string_view bytes) {
  try {
    (void)parse(bytes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}
std::string header_message(const std::string& header, const std::string& data = {}) {
  return message_of(file_of(header, data));
}

// One file, byte by byte: a header of 128 bytes (0x80), p int32, u bf16, the header padded by blanks.
const std::string kGolden =
    "\x80\x00\x00\x00\x00\x00\x00\x00"s
    "{\"p\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"s   // 57 bytes
    "\"u\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[8,12]}}"s  // 57 bytes
    "               "s                                                      // 15 blanks
    "\x00\x00\x00\x00\xff\xff\xff\xff"s                                     // p = [[0, -1]]
    "\x80\x3f\x00\xc0"s;                                                    // u = [[1], [-2]]

TEST(Safetensors, ReadsTheGoldenFile) {
  ASSERT_EQ(kGolden.size(), 8U + 128U + 12U);
  const SafetensorsFile file = parse(kGolden);
  ASSERT_EQ(file.tensors.size(), 2U);
  EXPECT_TRUE(file.unsupported.empty());
  const HostTensor& p = file.tensors.at("p");
  EXPECT_EQ(p.type, ElementType::int32);
  EXPECT_EQ(p.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(p.to_int64(), (std::vector<std::int64_t>{0, -1}));
  const HostTensor& u = file.tensors.at("u");
  EXPECT_EQ(u.type, ElementType::bf16);
  EXPECT_EQ(u.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(u.to_double(), (std::vector<double>{1.0, -2.0}));
}

TEST(Safetensors, WritesTheSameBytesForTheSameTensors) {
  const std::string expected =
      "\x78\x00\x00\x00\x00\x00\x00\x00"s
      "{\"p\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"s
      "\"u\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[8,12]}}"s
      "       "s
      "\x00\x00\x00\x00\xff\xff\xff\xff\x80\x3f\x00\xc0"s;
  EXPECT_EQ(serialize(parse(kGolden).tensors), expected);
}

TEST(Safetensors, LargerElementsComeFirstSoThatAllAreAligned) {
  const HostTensors tensors = {{"a", HostTensor::from_double(ElementType::fp16, {1}, {1.0})},
                               {"b", HostTensor::from_double(ElementType::fp64, {1}, {1.0})}};
  const std::string bytes = serialize(tensors);
  EXPECT_NE(bytes.find(R"("b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"), std::string::npos);
  EXPECT_NE(bytes.find(R"("a":{"dtype":"F16","shape":[1],"data_offsets":[8,10]})"), std::string::npos);
  EXPECT_EQ(parse(bytes).tensors.at("a").to_double(), (std::vector<double>{1.0}));
}

TEST(Safetensors, EveryDtypeAndOddShapesSurviveTheRoundTrip) {
  HostTensors tensors;
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16, ElementType::fp64,
                                 ElementType::int16, ElementType::uint16, ElementType::int32, ElementType::int64}) {
    tensors[std::string(name_of(type))] = HostTensor::from_double(type, {3}, {1, 2, 3});
  }
  tensors["complex"] = HostTensor::from_double(ElementType::complex64, {2}, {1, -2, 3, 4});
  tensors["scalar"] = HostTensor::from_double(ElementType::fp32, {}, {4});
  tensors["empty"] = HostTensor::zeros(ElementType::fp32, {2, 0, 5});
  tensors["näme \"\n"] = HostTensor::zeros(ElementType::int64, {1});
  const HostTensors again = parse(serialize(tensors)).tensors;
  ASSERT_EQ(again.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(again.contains(name)) << name;
    EXPECT_EQ(again.at(name).type, tensor.type) << name;
    EXPECT_EQ(again.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(again.at(name).bytes, tensor.bytes) << name;
  }
  EXPECT_EQ(again.at("bf16").to_double(), (std::vector<double>{1, 2, 3}));
}

TEST(Safetensors, ComplexNumbersAreC64) {
  const std::string file = serialize({{"A", HostTensor::from_double(ElementType::complex64, {1}, {1, -2})}});
  EXPECT_NE(file.find(R"("A":{"dtype":"C64","shape":[1],"data_offsets":[0,8]})"), std::string::npos) << file;
  EXPECT_TRUE(file.ends_with("\x00\x00\x80\x3f\x00\x00\x00\xc0"s));  // 1, -2: the real part first
}

TEST(Safetensors, OtherDtypesAreKeptByName) {
  const SafetensorsFile file = parse(
      file_of(R"({"__metadata__":{"made_by":"hand"},"ids":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc"));
  EXPECT_TRUE(file.tensors.empty());
  EXPECT_EQ(file.unsupported.at("ids"), "U8");
}

TEST(Safetensors, NoTensorsAtAll) {
  EXPECT_TRUE(parse(file_of("{}", "")).tensors.empty());
  EXPECT_EQ(serialize({}), "\x08\x00\x00\x00\x00\x00\x00\x00{}      "s);
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  EXPECT_THROW((void)serialize({{"__metadata__", HostTensor::zeros(ElementType::fp32, {1})}}), std::invalid_argument);
  EXPECT_THROW((void)serialize({{"\xff", HostTensor::zeros(ElementType::fp32, {1})}}), std::invalid_argument);
  HostTensor short_one = HostTensor::zeros(ElementType::fp32, {2});
  short_one.bytes.resize(4);
  EXPECT_THROW((void)serialize({{"x", short_one}}), std::invalid_argument);
}

TEST(SafetensorsDamage, TruncatedAtEveryLength) {
  for (std::size_t length = 0; length < kGolden.size(); ++length) {
    EXPECT_NE(message_of(kGolden.substr(0, length)), "nothing was thrown") << length;
  }
  EXPECT_EQ(message_of(kGolden.substr(0, 3)),
            "in.st: not a safetensors file: it has 3 bytes; expected at least the 8 of the header length");
  EXPECT_EQ(message_of(kGolden.substr(0, 20)),
            "in.st: truncated safetensors file: a header of 128 bytes is announced; 12 bytes follow");
  EXPECT_EQ(
      message_of(kGolden.substr(0, 146)),
      "in.st: tensor \"u\": data_offsets are [8, 12]; expected an interval inside the 10 bytes of data that the file "
      "holds");
  EXPECT_EQ(message_of(kGolden + "x"),
            "in.st: tensors end at byte 12 of the data, which has 13; expected no bytes behind them");
}

TEST(SafetensorsDamage, HeaderLengthThatLies) {
  EXPECT_EQ(message_of("\xff\xff\xff\xff\xff\xff\xff\xff{}"s),
            "in.st: not a safetensors file, or damaged: a header of 18446744073709551615 bytes is announced; at most "
            "100000000 are read");
  EXPECT_EQ(
      message_of("\x01\xe1\xf5\x05\x00\x00\x00\x00{}"s),
      "in.st: not a safetensors file, or damaged: a header of 100000001 bytes is announced; at most 100000000 are "
      "read");
  EXPECT_EQ(message_of("\x00\x00\x00\x00\x00\x00\x00\x00"s),
            "in.st: not a safetensors file: its header does not begin with '{'");
}

TEST(SafetensorsDamage, OffsetsThatLie) {
  const std::string a = R"({"a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]},)";
  EXPECT_EQ(header_message(a + R"("b":{"dtype":"I16","shape":[2],"data_offsets":[2,6]}})", "123456"),
            "in.st: tensor \"b\": data_offsets begin at 2, where the tensor before ends at 4; expected no overlap");
  EXPECT_EQ(header_message(a + R"("b":{"dtype":"I16","shape":[1],"data_offsets":[6,8]}})", "12345678"),
            "in.st: tensor \"b\": data_offsets begin at 6, where the tensor before ends at 4; expected no gap");
  EXPECT_EQ(
      header_message(R"({"a":{"dtype":"I16","shape":[1],"data_offsets":[4,2]}})", "1234"),
      "in.st: tensor \"a\": data_offsets are [4, 2]; expected an interval inside the 4 bytes of data that the file "
      "holds");
  EXPECT_EQ(
      header_message(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}})", "1234"),
      "in.st: tensor \"a\": shape (3) of F32 is 3 elements of 4 bytes, 12 bytes; data_offsets [0, 4] hold 4 bytes");
  EXPECT_NE(header_message(R"({"a":{"dtype":"I16","shape":[1],"data_offsets":[0,18446744073709551615]}})", "12")
                .find("data_offsets are [0, 18446744073709551615]"),
            std::string::npos);
}

TEST(SafetensorsDamage, OnlySpacesBehindTheHeader) {
  EXPECT_EQ(header_message("{}   "), "nothing was thrown");
  EXPECT_EQ(header_message("{}\n"),
            R"(in.st: safetensors header: "\n" at byte 2 of it; expected nothing but spaces behind the closing brace)");
  EXPECT_NE(header_message("{}x").find("the header is not JSON"), std::string::npos);
  EXPECT_EQ(header_message("{}\0\0"s),
            "in.st: safetensors header: a NUL byte at byte 2 of it; expected JSON, then nothing but spaces");
  EXPECT_NE(header_message("{\0}"s).find("a NUL byte at byte 1"), std::string::npos);
}

TEST(SafetensorsDamage, ShapesThatOverflow) {
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
            "in.st: tensor \"a\": a shape with the size 4294967296 has more elements than 63 bits count");
  EXPECT_NE(header_message(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", "1234")
                .find("more elements than 63 bits count"),
            std::string::npos);
  EXPECT_NE(header_message(R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", "1234")
                .find("expected integers from 0 to 2^64-1 in shape"),
            std::string::npos);
  // 2^62 elements of 4 bytes: the byte count would wrap to 0.
  EXPECT_NE(header_message(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})")
                .find("4611686018427387904 elements of 4 bytes; data_offsets"),
            std::string::npos);
}

TEST(SafetensorsDamage, NamesAndKeysGivenTwice) {
  const std::string entry = R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(header_message(R"({"a":)" + entry + R"(,"a":)" + entry + "}"),
            R"(in.st: safetensors header: the name "a" is given twice)");
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
            R"(in.st: safetensors header: tensor "a": dtype is given twice)");
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","shape":[0]}})"),
            R"(in.st: safetensors header: tensor "a": there is no data_offsets)");
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","strides":[0]}})"),
            R"(in.st: safetensors header: tensor "a": unknown key "strides"; expected dtype, shape and data_offsets)");
}

TEST(SafetensorsDamage, ValuesOfTheWrongKind) {
  EXPECT_EQ(
      header_message(R"({"a":3})"),
      R"(in.st: safetensors header: tensor "a": expected an object with dtype, shape and data_offsets, found the number 3)");
  EXPECT_EQ(header_message(R"({"a":{"dtype":7}})"),
            R"(in.st: safetensors header: tensor "a": expected a string as dtype, found the number 7)");
  EXPECT_EQ(
      header_message(R"({"a":{"shape":[-1]}})"),
      R"(in.st: safetensors header: tensor "a": expected integers from 0 to 2^64-1 in shape, found the number -1)");
  EXPECT_EQ(
      header_message(R"({"a":{"shape":[1.5]}})"),
      R"(in.st: safetensors header: tensor "a": expected integers from 0 to 2^64-1 in shape, found the number "1.5")");
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0]}})"),
            R"(in.st: safetensors header: tensor "a": data_offsets has 1 numbers; expected [begin, end])");
  EXPECT_EQ(header_message(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,1,2]}})"),
            R"(in.st: safetensors header: tensor "a": data_offsets has more than two numbers; expected [begin, end])");
  for (const char* header : {R"({"a":null})", R"({"a":true})", R"({"a":[]})", R"({"a":"text"})",
                             R"({"__metadata__":{"k":1}})", R"({"__metadata__":[]})", R"({"a":{"dtype":{}}})",
                             R"({"a":{"shape":[[1]]}})", "{} x", "{", "{\"a\"", "{]", "{\"a\":{\"shape\":[1e999]}}"}) {
    EXPECT_NE(header_message(header), "nothing was thrown") << header;
  }
}

TEST(SafetensorsDamage, TextThatIsNotUtf8) {
  const std::string message = header_message("{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
  EXPECT_NE(message.find("in.st: safetensors header: the header is not JSON at byte 3 of it"), std::string::npos)
      << message;
  for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << "the message repeats raw bytes";
}

TEST(SafetensorsDamage, DepthBombs) {
  EXPECT_NE(header_message("{\"a\":{\"shape\":" + std::string(60'000, '[')).find("found an array"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 10'000; ++i) objects += "{\"a\":";
  EXPECT_NE(header_message(objects).find("unknown key"), std::string::npos);
}

TEST(SafetensorsFiles, ReadsFromDiskAndNamesWhatIsWrong) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "packjit safetensors ü";
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "golden.safetensors";
  std::ofstream(path, std::ios::binary) << kGolden;
  EXPECT_EQ(read_safetensors(path).tensors.at("u").to_double(), (std::vector<double>{1.0, -2.0}));

  const auto message = [](const std::filesystem::path& bad) -> std::string {
    try {
      (void)read_safetensors(bad);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message(folder / "missing").find("No such file"), std::string::npos) << message(folder / "missing");
  EXPECT_NE(message(folder).find("it is not a file"), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace packjit
