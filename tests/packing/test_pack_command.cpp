// The program `packjit pack` as a user runs it: exit statuses, streams, output files.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace packjit {
namespace {

class PackCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "packjit_pack_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Runs `packjit pack`; returns the exit status, leaves both streams in output_ and errors_.
  int pack(const std::string& arguments) {
    const std::string command = std::string("'") + PACKJIT_PROGRAM + "' pack " + arguments + " >'" + path("stdout") +
                                "' 2>'" + path("stderr") + "'";
    const int status = std::system(command.c_str());
    output_ = read("stdout");
    errors_ = read("stderr");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::filesystem::path folder_;
  std::string output_;
  std::string errors_;
};

TEST_F(PackCommand, JsonHasTheFillRate) {
  write("lengths", "5\n4\n3\n6\n2\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --method next-fit --json"), 0) << errors_;
  const auto report = nlohmann::json::parse(output_);
  EXPECT_DOUBLE_EQ(report["fill_rate"].get<double>(), 20.0 / 30);
  EXPECT_EQ(report["rows"], 3);
  EXPECT_EQ(report["method"], "next-fit");
  EXPECT_EQ(errors_, "");
}

TEST_F(PackCommand, ThePlanDoesNotReplaceTheLengths) {
  write("lengths", "5\n4\n");
  std::filesystem::create_symlink("lengths", folder_ / "link");
  std::filesystem::create_hard_link(folder_ / "lengths", folder_ / "other name");
  for (const char* out : {"lengths", "link", "other name"}) {
    EXPECT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --out '" + path(out) + "'"), 2) << out;
    EXPECT_EQ(errors_, "packjit: --lengths and --out are the same file, '" + path(out) +
                           "', of which only one would be left; name another one\n");
    EXPECT_EQ(read("lengths"), "5\n4\n");
  }
  EXPECT_EQ(pack("--lengths /dev/stdin --pack-length 10 --out /dev/null <'" + path("lengths") + "'"), 0) << errors_;
}

TEST_F(PackCommand, MillionsOfTinyPiecesAreRefusedAtOnce) {
  write("lengths", "500000\n600000\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 1"), 2);
  EXPECT_EQ(
      errors_,
      "packjit: pack: documents cut at 1 tokens would make more than 1,000,000 pieces; raise --pack-length to 128 "
      "or more, or pack fewer documents\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 4096 --cut 1"), 2);
  EXPECT_NE(errors_.find("raise --cut to 128 or more"), std::string::npos) << errors_;
  EXPECT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 128"), 0) << errors_;
  EXPECT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 64"), 0) << errors_;
}

TEST_F(PackCommand, CompareRunsEveryMethod) {
  write("lengths", "6\n7\n3\n4\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --compare --json"), 0) << errors_;
  const auto report = nlohmann::json::parse(output_);
  ASSERT_EQ(report["methods"].size(), 6u);
  EXPECT_EQ(report["methods"][0]["method"], "next-fit");
  EXPECT_EQ(report["methods"][0]["rows"], 3);  // 6 | 7 3 | 4
  EXPECT_EQ(report["methods"][1]["method"], "local-greedy");
  EXPECT_EQ(report["methods"][5]["method"], "balanced");
  for (const std::size_t i : {1, 2, 3, 5}) EXPECT_EQ(report["methods"][i]["rows"], 2) << i;  // 7 3 | 6 4
  EXPECT_EQ(report["methods"][4]["rows"], 3);  // length-groups: 6, 7 | 3 4 are apart
  EXPECT_GE(report["methods"][0]["seconds"].get<double>(), 0);
}

TEST_F(PackCommand, CompareDividesOverTheRanksThatWereGiven) {
  write("lengths", "6\n7\n3\n4\n");
  for (const std::string method : {"local-greedy", "next-fit"}) {
    ASSERT_EQ(
        pack("--lengths '" + path("lengths") + "' --pack-length 10 --compare --json --ranks 4 --method " + method), 0)
        << errors_;
    const auto report = nlohmann::json::parse(output_);
    EXPECT_EQ(report["rows"], 4);  // each rank has a document, and so a row, of its own
    for (const auto& row : report["methods"]) {
      EXPECT_EQ(row["balance"]["ranks"], 4);
      if (row["method"] != method) continue;
      for (const char* field : {"fill_rate", "rows", "calls", "pieces", "padding_tokens", "order_drift"}) {
        EXPECT_EQ(row[field], report[field]) << field;
      }
    }
  }
}

TEST_F(PackCommand, TableInPlainWords) {
  write("lengths", "6\n7\n3\n4\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --compare"), 0) << errors_;
  EXPECT_NE(output_.find("fill rate"), std::string::npos);
  EXPECT_NE(output_.find("100.00 %"), std::string::npos);
  EXPECT_NE(output_.find("66.67 %"), std::string::npos);
}

TEST_F(PackCommand, WritesThePlan) {
  write("lengths", "24\n6\n10\n9\n");
  ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --rows-per-call 2 --method next-fit --out '" +
                 path("plan.json") + "'"),
            0)
      << errors_;
  std::ifstream golden(PACKJIT_GOLDEN "/plan_v1_1.json", std::ios::binary);
  EXPECT_EQ(read("plan.json"), std::string(std::istreambuf_iterator<char>(golden), {}));
}

TEST_F(PackCommand, BadInputIsStatus2AndLeavesTheOutputAsItWas) {
  write("lengths", "5\n");
  write("bad", "5\nfive\n");
  write("plan.json", "as it was");
  const std::string out = " --out '" + path("plan.json") + "'";
  const std::string good = "--lengths '" + path("lengths") + "' ";
  for (const std::string& arguments : std::vector<std::string>{
           "--lengths '" + path("bad") + "' --pack-length 10",
           "--lengths '" + path("missing") + "' --pack-length 10",
           "--lengths '" + folder_.string() + "' --pack-length 10",
           "--lengths /dev/null --pack-length 10",
           good,
           good + "--pack-length 0",
           good + "--pack-length -4",
           good + "--pack-length 2147483648",
           good + "--pack-length 99999999999999999999",
           good + "--pack-length ten",
           good + "--pack-length 10 --cut 0",
           good + "--pack-length 10 --cut 11",
           good + "--pack-length 10 --rows-per-call 0",
           good + "--pack-length 10 --window 0",
           good + "--pack-length 10 --open-packs -1",
           good + "--pack-length 10 --seed -1",
           good + "--pack-length 10 --method worst-fit",
           good + "--pack-length 10 --cut-slack -1",
           good + "--pack-length 10 --min-piece 0",
           good + "--pack-length 10 --min-piece 11",
           good + "--pack-length 10 --ranks 0",
           good + "--pack-length 10 --ranks 2",
           good + "--pack-length 10 --ranks 2 --rank 2",
           good + "--pack-length 10 --ranks 2 --rank 0 --division fair",
           good + "--pack-length 10 --rank -1",
           good + "--pack-length 10 --epoch -1",
           good + "--pack-length 10 --nonsense",
       }) {
    EXPECT_EQ(pack(arguments + out), 2) << arguments << "\n" << errors_;
    EXPECT_EQ(output_, "") << arguments;
    EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1) << arguments << "\n" << errors_;
    EXPECT_EQ(read("plan.json"), "as it was") << arguments;
  }
}

TEST_F(PackCommand, MessagesOfBadLinesHaveTheirNumber) {
  const std::string digits(30, '9');
  for (const std::string& line :
       {std::string("-3"), std::string("0"), std::string("five"), digits, std::string("2.5"), std::string("")}) {
    write("bad", "5\n7\n" + line + "\n4\n");
    EXPECT_EQ(pack("--lengths '" + path("bad") + "' --pack-length 10"), 2) << line;
    EXPECT_NE(errors_.find("line 3: expected a length in tokens"), std::string::npos) << errors_;
  }
  for (const char* breaks : {"[4, 3]", "[3, 3]", "[0]", "[9]", "[-1]", "[\"2\"]", "7"}) {
    write("bad", "{\"length\": 9, \"breaks\": [8]}\n{\"length\": 9, \"breaks\": " + std::string(breaks) + "}\n");
    EXPECT_EQ(pack("--lengths '" + path("bad") + "' --pack-length 10"), 2) << breaks;
    EXPECT_NE(errors_.find("line 2: expected \"breaks\" to be"), std::string::npos) << errors_;
  }
}

TEST_F(PackCommand, CutsWithinTheSlackAndKeepsPiecesLong) {
  write("lengths", "{\"length\": 22, \"breaks\": [6, 18]}\n");
  const auto pieces = [&](const std::string& more) {
    EXPECT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --method next-fit --out '" +
                   path("plan.json") + "' " + more),
              0)
        << errors_;
    std::vector<std::int64_t> lengths;
    const auto plan = nlohmann::json::parse(read("plan.json"));
    for (const auto& call : plan["calls"]) {
      lengths.push_back(call["rows"][0]["pieces"][0]["length"]);
      EXPECT_EQ(call["rows"][0]["pieces"][0]["document_length"], 22);
    }
    return lengths;
  };
  EXPECT_EQ(pieces(""), (std::vector<std::int64_t>{6, 10, 6}));
  EXPECT_EQ(pieces("--cut-slack 2"), (std::vector<std::int64_t>{10, 8, 4}));
  EXPECT_EQ(pieces("--cut-slack 2 --min-piece 5"), (std::vector<std::int64_t>{10, 7, 5}));
}

TEST_F(PackCommand, EachRankHasItsPlanAndTheReportTheBalance) {
  write("lengths", "3\n4\n5\n6\n");
  const std::string common = "--lengths '" + path("lengths") + "' --pack-length 10 --method next-fit --ranks 2 --json ";
  std::vector<std::int64_t> documents;
  for (const char* rank : {"0", "1"}) {
    ASSERT_EQ(pack(common + "--rank " + rank + " --out '" + path("plan.json") + "'"), 0) << errors_;
    const auto plan = nlohmann::json::parse(read("plan.json"));
    EXPECT_EQ(plan["rank"].dump(), rank);
    EXPECT_EQ(plan["tokens"], 9);
    for (const auto& piece : plan["calls"][0]["rows"][0]["pieces"]) documents.push_back(piece["document"]);
  }
  EXPECT_EQ(documents, (std::vector<std::int64_t>{0, 3, 1, 2}));
  const auto report = nlohmann::json::parse(output_);
  EXPECT_EQ(report["balance"]["steps"], 1);
  EXPECT_DOUBLE_EQ(report["balance"]["fill_rate"].get<double>(), 0.9);
  EXPECT_DOUBLE_EQ(report["balance"]["mean_token_spread"].get<double>(), 0);
  EXPECT_EQ(report["balance"]["division"], "balanced");
  ASSERT_EQ(pack(common + "--division round-robin"), 0) << errors_;
  const auto in_turn = nlohmann::json::parse(output_);  // 3 and 5, 4 and 6
  EXPECT_DOUBLE_EQ(in_turn["balance"]["mean_token_spread"].get<double>(), 0.2);
}

TEST_F(PackCommand, AnEpochHasAnOrderOfItsOwn) {
  std::string lengths;
  for (int i = 0; i < 50; ++i) lengths += std::to_string(1 + i % 7) + "\n";
  write("lengths", lengths);
  std::vector<std::string> plans;
  for (const char* epoch : {"", "--epoch 0", "--epoch 1", "--epoch 1"}) {
    ASSERT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --out '" + path("plan.json") + "' " + epoch),
              0)
        << errors_;
    plans.push_back(nlohmann::json::parse(read("plan.json"))["calls"].dump());
  }
  EXPECT_NE(plans[0], plans[1]);
  EXPECT_NE(plans[1], plans[2]);
  EXPECT_EQ(plans[2], plans[3]);
}

TEST_F(PackCommand, UnwritableOutputIsStatus2) {
  write("lengths", "5\n");
  EXPECT_EQ(pack("--lengths '" + path("lengths") + "' --pack-length 10 --out '" + path("no/such/plan.json") + "'"), 2);
  EXPECT_NE(errors_.find("no/such/plan.json"), std::string::npos) << errors_;
}

}  // namespace
}  // namespace packjit
