#include "cli/lengths_file.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace packjit {
namespace {

std::vector<std::int64_t> lengths(std::string_view text) {
  std::vector<std::int64_t> result;
  for (const Document& document : parse_lengths(text, "x")) result.push_back(document.length);
  return result;
}

std::string refusal(std::string_view text) {
  try {
    (void)parse_lengths(text, "x");
    return "accepted";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

using Lengths = std::vector<std::int64_t>;
const std::string kLength = "a length in tokens, a whole number from 1 to 2147483647";
const std::string kAt2 = "cannot read lengths from x, line 2: expected ";

TEST(LengthsFile, OneNumberALine) {
  EXPECT_EQ(lengths("5\n4\n3\n"), (Lengths{5, 4, 3}));
  EXPECT_EQ(lengths("5\r\n 4\t\r\n3"), (Lengths{5, 4, 3}));
  EXPECT_EQ(lengths("2147483647\n007\n\n  \n"), (Lengths{2147483647, 7}));
  EXPECT_EQ(lengths("\xef\xbb\xbf"
                    "12\n"),
            (Lengths{12}));
}

TEST(LengthsFile, JsonLines) {
  const auto found = parse_lengths("{\"length\":12,\"breaks\":[4,7]}\n{\"source\":\"rfc\",\"length\":3}\n", "x");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].length, 12);
  EXPECT_EQ(found[0].breaks, (Lengths{4, 7}));
  EXPECT_EQ(found[1].length, 3);
  EXPECT_TRUE(found[1].breaks.empty());
}

TEST(LengthsFile, BadNumberNamesLineExpectedAndFound) {
  EXPECT_EQ(refusal("5\n0\n"), kAt2 + kLength + ", found '0'");
  EXPECT_EQ(refusal("5\n-3\n"), kAt2 + kLength + ", found '-3'");
  EXPECT_EQ(refusal("5\n2147483648\n"), kAt2 + kLength + ", found '2147483648'");
  EXPECT_EQ(refusal("5\n99999999999999999999999\n"), kAt2 + kLength + ", found '99999999999999999999999'");
  EXPECT_EQ(refusal("5\n4.5\n"), kAt2 + kLength + ", found '4.5'");
  EXPECT_EQ(refusal("5\n4 4\n"), kAt2 + kLength + ", found '4 4'");
  EXPECT_EQ(refusal("5\n\n4\n"), kAt2 + kLength + ", found an empty line");
  EXPECT_EQ(refusal("5\n\xff\x1b[2J\n"), kAt2 + kLength + ", found '\\xff\\x1b[2J'");
  EXPECT_EQ(refusal("5\n{\"length\":3}\n"), kAt2 + kLength + ", found '{\"length\":3}'");
  EXPECT_EQ(refusal(std::string_view("5\n4\0\n", 5)), kAt2 + "text, found a NUL byte in '4\\x00'");
  EXPECT_EQ(refusal("5\n" + std::string(1000, '1')),
            kAt2 + kLength + ", found '" + std::string(40, '1') + "...' (1000 bytes)");
  EXPECT_EQ(refusal("5\n" + std::string((1 << 24) + 1, '1')), kAt2 + "at most 16777216 bytes, found 16777217 bytes");
}

TEST(LengthsFile, NothingInTheFile) {
  for (const char* text : {"", "\n", " \r\n\t\n"}) {
    EXPECT_EQ(refusal(text),
              "cannot read lengths from x: expected one length a line, or JSON Lines with \"length\", found nothing");
  }
}

TEST(LengthsFile, BadJsonNamesLineExpectedAndFound) {
  const std::string good = "{\"length\":5}\n";
  const std::string object = "a JSON object with \"length\", found ";
  EXPECT_EQ(refusal(good + "7"), kAt2 + object + "'7'");
  EXPECT_EQ(refusal(good + "{\"len\":5}"), kAt2 + object + "'{\"len\":5}' without it");
  EXPECT_EQ(refusal(good + "{\"length\":5"), kAt2 + object + "'{\"length\":5', no JSON from byte 12 on");
  EXPECT_EQ(refusal(good + "{\"length\":1e999}"),
            kAt2 + object + "'{\"length\":1e999}' with a number that is too large");
  const std::string length = "\"length\" to be " + kLength + ", found ";
  EXPECT_EQ(refusal(good + "{\"length\":0}"), kAt2 + length + "'0'");
  EXPECT_EQ(refusal(good + "{\"length\":-9}"), kAt2 + length + "'-9'");
  EXPECT_EQ(refusal(good + "{\"length\":5.5}"), kAt2 + length + "'5.5'");
  EXPECT_EQ(refusal(good + "{\"length\":\"5\"}"), kAt2 + length + "'\"5\"'");
  EXPECT_EQ(refusal(good + "{\"length\":18446744073709551615}"), kAt2 + length + "'18446744073709551615'");
  EXPECT_EQ(refusal(good + "{\"length\":[]}"), kAt2 + length + "a list");
  EXPECT_EQ(refusal(good + "{\"length\":5,\"breaks\":3}"),
            kAt2 + "\"breaks\" to be a list of token offsets, found '3'");
  const std::string breaks = "\"breaks\" to be whole numbers that increase inside (0, 5), found ";
  EXPECT_EQ(refusal(good + "{\"length\":5,\"breaks\":[2,2]}"), kAt2 + breaks + "'2' after 2");
  EXPECT_EQ(refusal(good + "{\"length\":5,\"breaks\":[0]}"), kAt2 + breaks + "'0' after 0");
  EXPECT_EQ(refusal(good + "{\"length\":5,\"breaks\":[5]}"), kAt2 + breaks + "'5' after 0");
  EXPECT_EQ(refusal(good + "{\"length\":5,\"breaks\":[null]}"), kAt2 + breaks + "'null' after 0");
}

TEST(LengthsFile, AKeyThatComesTwiceIsRefused) {
  const std::string good = "{\"length\":5}\n";
  EXPECT_EQ(refusal(good + "{\"length\":5,\"length\":6}"), kAt2 + "every key once, found 'length' twice");
  EXPECT_EQ(refusal(good + "{\"length\":5,\"len\\u0067th\":5}"), kAt2 + "every key once, found 'length' twice");
  EXPECT_EQ(refusal(good + "{\"a\":1,\"length\":5,\"a\":1}"), kAt2 + "every key once, found 'a' twice");
  EXPECT_EQ(lengths("{\"length\":5,\"a\":{\"length\":6},\"b\":[{\"length\":7},{\"length\":8}]}"), (Lengths{5}));
}

TEST(LengthsFile, DeepNestingIsAMessageToo) {
  const std::string deep(1000000, '[');
  EXPECT_EQ(refusal("{\"length\":" + deep + std::string(1000000, ']') + "}"),
            "cannot read lengths from x, line 1: expected \"length\" to be " + kLength + ", found a list");
  EXPECT_NE(refusal("{\"length\":" + deep), "accepted");
}

TEST(LengthsFile, FolderAndMissingFile) {
  EXPECT_THROW((void)read_lengths_file(PACKJIT_BENCH_DATA), std::invalid_argument);
  try {
    (void)read_lengths_file("no such file");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "cannot read lengths from 'no such file': No such file or directory");
  }
}

}  // namespace
}  // namespace packjit
