#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "runtime/cuda_device.hpp"

namespace {

struct Outcome {
  int status;
  std::string text;  ///< what the shell line printed on its stdout
};

/// Runs the program through the shell; `arguments` may hold redirections.
Outcome packjit(const std::string& arguments) {
  const std::string line = std::string("'") + PACKJIT_PROGRAM + "' " + arguments;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(ExitStatus, VersionAndHelpSucceedOnStdout) {
  EXPECT_EQ(packjit("--version 2>/dev/null").text, "packjit 0.1.0\n");
  const Outcome help = packjit("--help 2>/dev/null");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.text.find("Usage: packjit"), std::string::npos) << help.text;
}

TEST(ExitStatus, BadUsageIsTwoWithOneMessageOnStderr) {
  for (const char* arguments : {"", "--nonsense", "no-such-command", "''"}) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.text.rfind("packjit: ", 0), 0U) << outcome.text;
    EXPECT_EQ(outcome.text.find('\n'), outcome.text.size() - 1) << outcome.text;
    EXPECT_EQ(packjit(std::string(arguments) + " 2>/dev/null").text, "") << arguments;
  }
}

TEST(ExitStatus, UnknownCommandsAreNamed) {
  for (const char* arguments : {"train --help", "train", "train --arch sm_90"}) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.text.rfind("packjit: there is no command 'train'; the commands are doctor, pack, ", 0), 0U)
        << outcome.text;
  }
}

TEST(ExitStatus, LostOutputIsAnError) {
  for (const char* redirection : {">/dev/full", ">&-"}) {
    const Outcome outcome = packjit(std::string("--version 2>&1 ") + redirection);
    EXPECT_EQ(outcome.status, 2) << redirection;
    EXPECT_NE(outcome.text.find("cannot write to standard output"), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, TuningWithoutAGpuSaysWhatCanBeDoneInstead) {
  if (!packjit::survey_driver().gpus.empty()) GTEST_SKIP() << "there is a GPU, which would be tuned";
  for (const char* arguments : {"tune --dim 4096", "tune ssm_pack_fwd --dim 64 --tokens 4096 --sequences 2 --json",
                                "tune --dim 64 --tokens 100 --sequences 3"}) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.status, 3) << arguments;
    for (const char* said : {"packjit: tune measures on a GPU, and there is none to use here: ", "`packjit db merge`",
                             "`packjit explain`", "`packjit compile --arch`"}) {
      EXPECT_NE(outcome.text.find(said), std::string::npos) << outcome.text;
    }
    EXPECT_EQ(packjit(std::string(arguments) + " 2>/dev/null").text, "");
  }
}

TEST(ExitStatus, TuningForNoShapeInParticularIsBadUsage) {
  const std::pair<const char*, const char*> kCases[] = {
      {"tune", "tune: --dim is missing"},
      {"tune --dim 0", "tune: --dim must be 1 to"},
      {"tune --dim 64 --tokens 5 --sequences 0", "tune: --sequences must be 1 to"},
      {"tune --dim 64 --tokens -9223372036854775808 --sequences 1", "tune: --tokens must be 1 to"},
      {"tune --dim 64 --tokens 64 --longest 0", "tune: --longest must be 1 to"},
      {"tune --dim 64 --budget 0", "tune: --budget must be above 0 seconds"},
      {"tune --dim 64 --sequences 3", "tune: --sequences and --longest describe a shape of --tokens, which is missing"},
      {"tune --dim 64 --tokens 64 --from-capture x.jsonl", "tune: --tokens, --lengths and --from-capture each say"},
      {"tune --dim 64 --tokens 64 --sequences 65", "65 sequences"},
      {"tune scan --dim 64", "ssm_pack_fwd"},
      {"tune --from-capture no-such-file.jsonl", "no-such-file.jsonl"},
  };
  for (const auto& [arguments, said] : kCases) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.text.find(said), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, TuneRefusesWhatItWouldPassOver) {
  const std::pair<const char*, const char*> cases[] = {
      {"tune --dim 64 --most 0", "--most must be above 0 seconds, found 0"},
      {"tune --dim 64 --most -5", "--most must be above 0 seconds, found -5"},
      {"tune --dim 64 --seed -1", "--seed must not be negative, found -1"},
      {"tune --from-capture shapes --dtype fp32", "leave OP, --dim, --d-state, --conv-width and --dtype out"},
      {"tune --from-capture shapes --d-state 8", "leave OP, --dim, --d-state, --conv-width and --dtype out"}};
  for (const auto& [arguments, said] : cases) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.text.find(said), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, VerifyCutNeedsADocumentThatIsLonger) {
  const Outcome outcome = packjit("verify --device host --lengths '" PACKJIT_ROOT
                                  "/tests/cli/documents_to_cut.jsonl' --pack-length 512 --cut 354 2>&1");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(
      outcome.text,
      "packjit: packjit verify: no document is longer than --cut 354: the longest, in line 2, has 354 tokens; give a "
      "smaller --cut\n");
}

}  // namespace
