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

TEST(ExitStatus, AFullDiskAndTooLittleMemoryAreTheMachines) {
  const Outcome disk = packjit("generate conv1d_pack_fwd -o /dev/full 2>&1");
  EXPECT_EQ(disk.status, 3) << disk.text;
  EXPECT_NE(disk.text.find("cannot write output file '/dev/full': No space left on device"), std::string::npos)
      << disk.text;
#if !defined(PACKJIT_SANITIZE)  // whose shadow memory needs more addresses
  const std::string line = std::string("ulimit -v 400000; '") + PACKJIT_PROGRAM +
                           "' bench pack --documents 100000000 --repeats 1 2>/dev/null";
  const int status = std::system(line.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
#endif
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
  const std::pair<const char*, int> kCases[] = {{">/dev/full", 3}, {">&-", 2}};
  for (const auto& [redirection, status] : kCases) {
    const Outcome outcome = packjit(std::string("--version 2>&1 ") + redirection);
    EXPECT_EQ(outcome.status, status) << redirection;
    EXPECT_NE(outcome.text.find("cannot write to standard output"), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, AnEmptyPathIsNotAnOptionLeftOut) {
  // Every option of a subcommand that takes a path, and where it stands in a call that goes no further.
  const std::pair<const char*, const char*> kCases[] = {
      {"pack --pack-length 8 --lengths ''", "--lengths: expected a file"},
      {"pack --pack-length 8 --lengths x --out ''", "--out: expected a file"},
      {"plan --gpu-memory 80 --model 130m --lengths ''", "--lengths: expected a file"},
      {"generate conv1d_pack_fwd -o ''", "--output: expected a file"},
      {"compile conv1d_pack_fwd --source ''", "--source: expected a file"},
      {"compile conv1d_pack_fwd -o ''", "--output: expected a file or a folder"},
      {"compile conv1d_pack_fwd --bundle ''", "--bundle: expected a file"},
      {"explain conv1d_pack_fwd --database ''", "--database: expected a file"},
      {"db show ''", "FILE: expected a file"},
      {"db check ''", "FILE: expected a file"},
      {"db merge ''", "FILE: expected a file"},
      {"db merge x -o ''", "--output: expected a file"},
      {"db prune ''", "FILE: expected a file"},
      {"db diff x ''", "FILE: expected a file"},
      {"cache export ''", "FILE: expected a file"},
      {"cache import ''", "FILE: expected a file"},
      {"run ssm_pack_fwd --out y --in ''", "--in: expected a file"},
      {"run ssm_pack_fwd --in x --out ''", "--out: expected a file"},
      {"run ssm_pack_fwd --in x --out y --source ''", "--source: expected a file"},
      {"verify --case ''", "--case: expected a file"},
      {"verify --lengths ''", "--lengths: expected a file"},
      {"bench ops --lengths ''", "--lengths: expected a file"},
      {"bench ops --peers ''", "--peers: expected a Python interpreter"},
      {"tune --dim 64 --lengths ''", "--lengths: expected a file"},
      {"tune --from-capture ''", "--from-capture: expected a file"},
      {"tune --dim 64 --report ''", "--report: expected a folder"},
  };
  for (const auto& [arguments, said] : kCases) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.text.rfind(std::string("packjit: ") + said + ", found ''", 0), 0U) << outcome.text;
  }
}

TEST(ExitStatus, AnEmptyTextIsNoValueOfAnyOption) {
  for (const char* arguments : {"pack --method ''", "explain ssm_pack_fwd --arch ''", "generate ''", "tune --dtype ''",
                                "compile ssm_pack_fwd --d-state ''", "compile ssm_pack_fwd --set ''"}) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.text.find(": expected a"), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, NumbersAreDecimalAndWhole) {
  const std::pair<const char*, const char*> kCases[] = {
      {"pack --pack-length ''", "--pack-length: expected a decimal integer of at most 64 bits, found ''"},
      {"pack --pack-length 0x10", "--pack-length: expected a decimal integer of at most 64 bits, found '0x10'"},
      {"pack --pack-length 1e3", "found '1e3'"},
      {"pack --pack-length ' 8'", "found ' 8'"},
      {"pack --epoch 9223372036854775808", "found '9223372036854775808'"},
      {"tune --dim 64 6x", "--dim: expected a decimal integer of at most 64 bits, found '6x'"},
      {"bench map --seed -1", "--seed: expected a decimal integer of at most 64 bits, not negative, found '-1'"},
      {"plan --gpu-memory 0x1p4", "--gpu-memory: expected a decimal number such as 0.5, found '0x1p4'"},
      {"plan --gpu-memory 80GB", "found '80GB'"},
      {"bench map --repeats 2147483648", "--repeats = 2147483648: expected a number that is nearer to 0"},
      // What a check says after that is of the number as it was meant.
      {"verify --lengths x --rows 02000", "--rows: Value 2000 not in range 1 to 1024"},
      {"bench map --repeats 00", "repeats 0 must all be at least 1"},
  };
  for (const auto& [arguments, said] : kCases) {
    const Outcome outcome = packjit(std::string(arguments) + " 2>&1");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.text.find(said), std::string::npos) << outcome.text;
  }
}

TEST(ExitStatus, AFlagTakesNoNumber) {
  for (const char* found : {"99999999999999999999999", "0", "5", "x", "on"}) {
    for (const char* flag : {"doctor --json=", "pack --pack-length 8 --lengths x --compare=", "cache list --json="}) {
      const Outcome outcome = packjit(std::string(flag) + found + " 2>&1");
      EXPECT_EQ(outcome.status, 2) << flag << found;
      EXPECT_NE(
          outcome.text.find(std::string(": expected nothing, true or false behind a flag, found '") + found + "'"),
          std::string::npos)
          << outcome.text;
    }
  }
  EXPECT_EQ(packjit("inspect conv1d_pack_fwd --arch sm_90 --json=true 2>&1").text.front(), '{');
  EXPECT_NE(packjit("inspect conv1d_pack_fwd --arch sm_90 --json=false 2>&1").text.front(), '{');
}

TEST(ExitStatus, ALeadingZeroIsNotOctal) {
  const Outcome outcome = packjit("pack --pack-length 0512 --cut 00000000512 --lengths '" PACKJIT_ROOT
                                  "/tests/cli/documents_to_cut.jsonl' --json 2>&1");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("\"pack_length\": 512,"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("\"cut\": 512,"), std::string::npos) << outcome.text;
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
