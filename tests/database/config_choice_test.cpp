#include "runtime/config_choice.hpp"

#include <gtest/gtest.h>

#include <new>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "database/shipped.hpp"
#include "tests/cache/cache_helpers.hpp"
#include "tests/cache/fake_file_system.hpp"
#include "tests/database/database_helpers.hpp"

namespace packjit::test {
namespace {

const Workload kWork{4096, 8, 1536, 512};

class ConfigChoices : public testing::Test {
 public:
  /// Puts an entry with this tile into the user's database.
  void tune(int tile, const GpuProperties& gpu = test_gpu()) { tune(tile, gpu, database_stem(gpu)); }
  void tune(int tile, const GpuProperties& gpu, const std::string& stem) {
    Entry entry = test_entry();
    entry.gpu = gpu;
    entry.config.values.set("tile_tokens", tile);
    DatabaseFile file(files, "/data", stem, gpu, clock.clock(), records.callback());
    ASSERT_TRUE(file.append(entry));
  }
  ConfigChooser chooser(std::span<const Database> shipped = {}, DatabaseLocation location = {"/data", false, ""}) {
    return {files, std::move(location), shipped, clock.clock(), log()};
  }
  LogCallback log() {
    return [this](const LogRecord& record) { messages.push_back(record.message); };
  }
  int accesses() {
    return std::accumulate(files.calls.begin(), files.calls.end(), 0,
                           [](int sum, const auto& call) { return sum + call.second; });
  }
  static Database shipped(int tile) {
    Entry entry = test_entry();
    entry.config.values.set("tile_tokens", tile);
    Database database;
    database.origin = "the shipped one";
    add(database, entry);
    return database;
  }

  FakeFileSystem files;
  FakeClock clock;
  Records records;
  std::vector<std::string> messages;
};

TEST_F(ConfigChoices, TheUsersDatabaseComesBeforeTheShippedOne) {
  const Spec spec(Operator::conv1d_pack_fwd);
  const std::vector<Database> with_library = {shipped(40)};
  ConfigChooser before = chooser(with_library);
  const Choice from_library = before.choose(spec, test_gpu(), kWork);
  EXPECT_EQ(from_library.config.values["tile_tokens"], 40);
  EXPECT_EQ(from_library.outcome, Outcome::exact);
  EXPECT_EQ(from_library.origin, "the shipped one, Test GPU entry of 2026-03-14 (dim 1536, tokens 4096)");
  tune(24);
  EXPECT_EQ(before.choose(spec, test_gpu(), kWork).config.values["tile_tokens"], 40);  // read once
  ConfigChooser after = chooser(with_library);
  EXPECT_EQ(after.choose(spec, test_gpu(), kWork).config.values["tile_tokens"], 24);
}

TEST_F(ConfigChoices, TheDigestIsLoggedOnce) {
  tune(24);
  ConfigChooser one = chooser();
  for (int i = 0; i < 3; ++i) (void)one.choose(Spec(Operator::conv1d_pack_fwd), test_gpu(), kWork);
  ASSERT_EQ(messages.size(), 1U);
  const std::string stem = database_stem(test_gpu());
  const std::string digest = database_digest(DatabaseFile(files, "/data", stem, test_gpu(), clock.clock(), {}).load());
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(messages[0],
            "Configs for Test GPU (sm_90): 1 tuned entries (digest " + digest + ") of /data/" + stem + ".json");
}

TEST_F(ConfigChoices, OffUsesNoDatabase) {
  tune(24);
  const std::vector<Database> with_library = {shipped(40)};
  ConfigChooser off = chooser(with_library, {"", true, ""});
  const int before = accesses();
  EXPECT_EQ(off.choose(Spec(Operator::conv1d_pack_fwd), test_gpu(), kWork).outcome, Outcome::built_in);
  EXPECT_EQ(accesses(), before);
  EXPECT_EQ(messages, std::vector<std::string>{"tuning databases are not used: PACKJIT_DATABASE_DIR is off"});
}

TEST_F(ConfigChoices, WithoutAFolderTheShippedOneIsUsed) {
  const std::vector<Database> with_library = {shipped(40)};
  ConfigChooser none = chooser(with_library, {"", false, "nothing is set"});
  EXPECT_EQ(none.choose(Spec(Operator::conv1d_pack_fwd), test_gpu(), kWork).outcome, Outcome::exact);
  EXPECT_EQ(accesses(), 0);
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages[0], "tuned entries are not used: nothing is set");
}

TEST_F(ConfigChoices, K49_FilesAreReadAtTheFirstQuestionOnly) {
  tune(24);
  ConfigChooser one = chooser();
  const int before = accesses();
  (void)one.choose(Spec(Operator::conv1d_pack_fwd), test_gpu(), kWork);
  const int after = accesses();
  EXPECT_GT(after, before);
  // New mixes of lengths, operators, dims: from several threads too.
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 1000; ++i) {
        const Operator op = kOperators[random() % 4];
        const auto tokens = static_cast<std::int64_t>(1 + random() % 100'000);
        (void)one.choose(Spec(op), test_gpu(), {tokens, 8, 1536, 1 + tokens / 3});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accesses(), after);
  // Another GPU model has its own file.
  GpuProperties other = test_gpu();
  other.multiprocessors = 114;
  (void)one.choose(Spec(Operator::conv1d_pack_fwd), other, kWork);
  EXPECT_GT(accesses(), after);
}

TEST_F(ConfigChoices, AQuestionThatRanOutOfMemoryIsAskedAgain) {
  tune(24);
  bool out_of_memory = true;
  ConfigChooser one(files, {"/data", false, ""}, {}, clock.clock(), [&](const LogRecord&) {
    if (std::exchange(out_of_memory, false)) throw std::bad_alloc();
  });
  const Spec spec(Operator::conv1d_pack_fwd);
  EXPECT_THROW((void)one.choose(spec, test_gpu(), kWork), std::bad_alloc);
  const Choice second = one.choose(spec, test_gpu(), kWork);
  EXPECT_EQ(second.outcome, Outcome::exact);
  EXPECT_EQ(second.config.values["tile_tokens"], 24);
}

TEST_F(ConfigChoices, TheUsersDatabasesOfOtherModelsServeTheArchitecture) {
  const Spec spec(Operator::conv1d_pack_fwd);
  GpuProperties smaller = test_gpu(), older = test_gpu(), any;
  smaller.multiprocessors = 114;
  older.arch = "sm_80";
  any.arch = "sm_90";
  tune(40, older);
  tune(24, smaller, "sm_90_98sm_00000000");  // a copy under the name of another model
  EXPECT_EQ(chooser().choose(spec, test_gpu(), kWork).outcome, Outcome::built_in);
  EXPECT_EQ(chooser().choose(spec, any, kWork).outcome, Outcome::built_in);
  tune(48, smaller);
  for (const GpuProperties& gpu : {test_gpu(), any}) {
    const Choice choice = chooser().choose(spec, gpu, kWork);
    EXPECT_EQ(choice.outcome, Outcome::same_architecture);
    EXPECT_EQ(choice.config.values["tile_tokens"], 48);
  }
  tune(32);
  EXPECT_EQ(chooser().choose(spec, test_gpu(), kWork).config.values["tile_tokens"], 32);
  EXPECT_EQ(chooser().choose(spec, smaller, kWork).config.values["tile_tokens"], 48);
}

TEST_F(ConfigChoices, AFolderThatCannotBeReadIsOneWarning) {
  files.faults["open"] = std::errc::permission_denied;
  EXPECT_EQ(chooser().choose(Spec(Operator::conv1d_pack_fwd), test_gpu(), kWork).outcome, Outcome::built_in);
  ASSERT_FALSE(messages.empty());
  EXPECT_TRUE(messages[0].starts_with("tuned entries are not used: cannot read the folder")) << messages[0];
  EXPECT_EQ(messages.size(), 2U);  // and the event of what is used
}

TEST_F(ConfigChoices, HostExecutionTakesTheBuiltInConfig) {
  DeviceInfo host;
  host.kind = "host";
  host.arch = "host";
  const Choice choice = choose_config(Spec(Operator::ssm_pack_fwd), host, kWork);
  EXPECT_EQ(choice.outcome, Outcome::built_in);
  EXPECT_EQ(choice.origin, "built-in Config for host");
  EXPECT_TRUE(choice.rejected.empty());
}

TEST(GpuProperties, AreThoseOfTheDevice) {
  DeviceInfo device{"cuda", "A label", "sm_90", 132, 232'448, 141LL << 30U, 62'914'560, 1980, 2619};
  const packjit::GpuProperties gpu = gpu_properties(device);
  EXPECT_EQ(gpu.name, "A label");
  EXPECT_EQ(gpu.arch, "sm_90");
  EXPECT_EQ(gpu.multiprocessors, 132);
  EXPECT_EQ(gpu.shared_bytes_per_block, 232'448);
  EXPECT_EQ(gpu.l2_bytes, 62'914'560);
  EXPECT_EQ(gpu.memory_clock_mhz, 2619);
}

TEST(Shipped, EveryDocumentIsWhole) {
  EXPECT_FALSE(shipped_databases().empty());
  for (const Database& database : shipped_databases()) {
    EXPECT_TRUE(database.gpu);
    EXPECT_FALSE(database.entries.empty());
    EXPECT_TRUE(database.unusable.empty());
  }
}

}  // namespace
}  // namespace packjit::test
