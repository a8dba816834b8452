#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>

#include "tests/oracle/helpers.hpp"

namespace packjit::oracle::testing {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no exception";
}

ConvInput valid_conv() {
  ConvInput in;
  in.length = 5;
  in.dim = 2;
  in.width = 4;
  in.x = Array(10, 1.0);
  in.weight = Array(8, 1.0);
  return in;
}

ScanInput valid_scan() {
  ScanInput in;
  in.length = 5;
  in.dim = 4;
  in.d_state = 3;
  in.groups = 2;
  in.u = in.delta = Array(20, 1.0);
  in.A = Array(12, -1.0);
  in.B = in.C = Array(30, 1.0);
  return in;
}

TEST(Sizes, MessageNamesCallArrayExpectedAndFound) {
  ConvInput in = valid_conv();
  in.weight.pop_back();
  EXPECT_EQ(message_of([&] { (void)conv_forward(in); }),
            "oracle conv_forward: weight needs 8 elements, shape (2, 4); found 7");
  in = valid_conv();
  in.initial_states = Array(8);
  EXPECT_EQ(message_of([&] { (void)conv_backward(in, Array(10), {}); }),
            "oracle conv_backward: initial_states needs 6 elements, shape (2, 3), or none; found 8");
  in = valid_conv();
  in.width = 0;
  EXPECT_EQ(message_of([&] { (void)conv_forward(in); }), "oracle conv_forward: width must be at least 1, found 0");
}

TEST(Sizes, EveryConvArrayIsChecked) {
  for (Array ConvInput::*member : {&ConvInput::x, &ConvInput::weight, &ConvInput::bias, &ConvInput::initial_states}) {
    ConvInput in = valid_conv();
    (in.*member).push_back(0.0);
    EXPECT_THROW((void)conv_forward(in), std::invalid_argument);
    EXPECT_THROW((void)conv_backward(in, Array(10), {}), std::invalid_argument);
  }
  EXPECT_THROW((void)conv_backward(valid_conv(), Array(9), {}), std::invalid_argument);
  EXPECT_THROW((void)conv_backward(valid_conv(), {}, {}), std::invalid_argument);
  EXPECT_THROW((void)conv_backward(valid_conv(), Array(10), Array(8)), std::invalid_argument);
  EXPECT_NO_THROW((void)conv_backward(valid_conv(), Array(10), Array(6)));
}

TEST(Sizes, EveryScanArrayIsChecked) {
  for (Array ScanInput::*member : {&ScanInput::u, &ScanInput::delta, &ScanInput::A, &ScanInput::B, &ScanInput::C,
                                   &ScanInput::D, &ScanInput::z, &ScanInput::delta_bias, &ScanInput::initial_states}) {
    ScanInput in = valid_scan();
    (in.*member).push_back(0.0);
    EXPECT_THROW((void)scan_forward(in), std::invalid_argument);
    EXPECT_THROW((void)scan_backward(in, Array(20), {}), std::invalid_argument);
  }
  EXPECT_THROW((void)scan_backward(valid_scan(), Array(19), {}), std::invalid_argument);
  EXPECT_THROW((void)scan_backward(valid_scan(), Array(20), Array(11)), std::invalid_argument);
  EXPECT_NO_THROW((void)scan_backward(valid_scan(), Array(20), Array(12)));
}

TEST(Sizes, ImpossibleSizesAreRefused) {
  ConvInput conv = valid_conv();
  conv.length = -1;
  EXPECT_THROW((void)conv_forward(conv), std::invalid_argument);
  conv = valid_conv();
  conv.length = std::numeric_limits<std::int64_t>::max() / 2 + 1;  // times dim 2 is 2^63
  EXPECT_THROW((void)conv_forward(conv), std::invalid_argument);

  ScanInput scan = valid_scan();
  scan.groups = 3;
  EXPECT_EQ(message_of([&] { (void)scan_forward(scan); }),
            "oracle scan_forward: groups must divide dim, found groups 3 and dim 4");
  scan.groups = 0;
  EXPECT_THROW((void)scan_forward(scan), std::invalid_argument);
  scan = valid_scan();
  scan.d_state = 0;
  EXPECT_THROW((void)scan_forward(scan), std::invalid_argument);
}

}  // namespace
}  // namespace packjit::oracle::testing
