#include <gtest/gtest.h>

#include "cli/terminal.hpp"

namespace packjit {
namespace {

TEST(Progress, LineShowsPartAndTime) {
  EXPECT_EQ(progress_line("checking", 5, 10, 12, 36), "checking [=======       ]  50 % 12 s");
  EXPECT_EQ(progress_line("x", 0, 4, 1, 24), "x [          ]   0 % 1 s");
  EXPECT_EQ(progress_line("x", 4, 4, 1, 24), "x [==========] 100 % 1 s");
}

TEST(Progress, LineNeverExceedsTheTerminal) {
  EXPECT_EQ(progress_line("a long label", 1, 2, 3, 6), "a long");
  EXPECT_EQ(progress_line("a long label", 1, 2, 3, 0), "");
  EXPECT_EQ(progress_line("tuning", 1, 2, 3, 17), "tuning  50 % 3 s");
}

TEST(ShellWord, IsQuotedWhereTheShellWouldReadMoreThanAName) {
  EXPECT_EQ(shell_word("bench/data/mixed_lengths-1.txt"), "bench/data/mixed_lengths-1.txt");
  EXPECT_EQ(shell_word("my lengths"), "'my lengths'");
  EXPECT_EQ(shell_word("$(touch x)"), "'$(touch x)'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("~"), "'~'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Progress, MoreStepsThanExpectedStayAtTheEnd) {
  EXPECT_EQ(progress_line("x", 9, 4, 1, 24), "x [==========] 100 % 1 s");
}

TEST(Progress, UnknownTotalShowsTheTimeOnly) { EXPECT_EQ(progress_line("compiling", 3, 0, 7, 80), "compiling 7 s"); }

TEST(Progress, SilentWhereStderrIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("work", 3);
    progress.advance(2);
    progress.set_label("more work");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace packjit
