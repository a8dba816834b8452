#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "database/builtin_config.hpp"
#include "packing/random.hpp"
#include "tests/tuning/fake_bench.hpp"
#include "tuning/targets.hpp"
#include "tuning/tuning_run.hpp"

// Tuning runs in processes of their own, which are killed. The bench and its clock are fakes, the files are real.
namespace packjit {
namespace {

namespace fs = std::filesystem;
using test::FakeBench;

const Spec kSpec(Operator::ssm_pack_fwd);

std::vector<TuningTarget> all_targets() {
  std::vector<TuningTarget> targets;
  for (const std::int64_t dim : {1536, 4096, 5120}) {
    const Workload work{.tokens = 32'768, .sequences = 54, .dim = dim, .longest = 2048};
    targets.push_back({kSpec, bucket_of(kSpec.op, work), work, batch_of(work)});
  }
  return targets;
}

/// 24 Configs, of which 4 lose the worker.
std::vector<Config> small_space(const Spec& spec, const DeviceLimits& limits) {
  std::vector<Config> space = search_space(spec, limits);
  std::erase_if(space, [](const Config& config) {
    const int min_blocks = config.values["min_blocks"];
    return (min_blocks != 3 && min_blocks != 4) || config.values["vector"] != 8 || config.values["copies"] == 0 ||
           config.values["segments"] != 0 || config.values["block"] == 256;
  });
  return space;
}
bool crashes(const Config& config) { return config.values["lanes"] == 4 && config.values["block"] == 128; }

/// Appends a line for each record, in two halves, and a byte to another file once the record is complete.
class FileStore : public TuningStore {
 public:
  FileStore(const std::string& path, bool slow) : slow_(slow) {
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
    acknowledged_ = open((path + ".acknowledged").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    const std::string all = text.str();
    // A torn last line is the record that was in flight.
    const std::size_t whole = all.rfind('\n') == std::string::npos ? 0 : all.rfind('\n') + 1;
    if (ftruncate(file_, static_cast<off_t>(whole)) != 0) _exit(90);
    std::istringstream lines(all.substr(0, whole));
    for (std::string line; std::getline(lines, line);) records.push_back(line);
  }
  ~FileStore() override {
    close(file_);
    close(acknowledged_);
  }
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  static std::string name_of_bucket(const Bucket& bucket) { return fmt::format("{}/{}", bucket.dim, bucket.tokens); }

  [[nodiscard]] std::optional<Entry> best(const Spec& spec, const Bucket& bucket, const GpuProperties& gpu) override {
    for (const std::string& record : records) {
      const auto fields = split(record);
      if (fields[0] != "entry" || fields[1] != name_of_bucket(bucket)) continue;
      return Entry{.spec = spec,
                   .bucket = bucket,
                   .config = config_of(fields[2]),
                   .measured = {},
                   .time = {},
                   .built_in = {},
                   .check = {},
                   .gpu = gpu,
                   .nvrtc = fields[3],
                   .driver = fields[4],
                   .source_digest = fields[5],
                   .date = {}};
    }
    return {};
  }
  [[nodiscard]] bool failed(const FailedCandidate& candidate) override {
    return std::ranges::find(records, line_of(candidate)) != records.end();
  }
  [[nodiscard]] std::vector<TriedCandidate> tried(const TuningTarget& target) override {
    std::vector<TriedCandidate> found;
    for (const std::string& record : records) {
      const auto fields = split(record);
      if (fields[0] != "tried" || fields[1] != name_of_bucket(target.bucket)) continue;
      found.push_back({config_of(fields[2]), std::stod(fields[3]), std::stod(fields[4]), std::stoi(fields[5])});
    }
    return found;
  }

  void add(const Entry& entry) override {
    append(fmt::format("entry|{}|{}|{}|{}|{}", name_of_bucket(entry.bucket), entry.config.values.text(), entry.nvrtc,
                       entry.driver, entry.source_digest));
  }
  void add(const FailedCandidate& failed) override { append(line_of(failed)); }
  void add(const TuningTarget& target, const TriedCandidate& one) override {
    append(fmt::format("tried|{}|{}|{}|{}|{}", name_of_bucket(target.bucket), one.config.values.text(), one.ratio,
                       one.median_ms, one.rounds));
  }

  static std::vector<std::string> split(const std::string& record) {
    std::vector<std::string> fields;
    std::istringstream in(record);
    for (std::string field; std::getline(in, field, '|');) fields.push_back(field);
    fields.resize(6);
    return fields;
  }

  std::vector<std::string> records;

 private:
  static std::string line_of(const FailedCandidate& failed) {
    return fmt::format("failed|{}|{}", failed.config.values.text(), failed.source_digest);
  }
  static Config config_of(const std::string& text) {
    Config config(kSpec.op);
    std::istringstream in(text);
    for (std::string field; in >> field;) {
      const std::size_t middle = field.find('=');
      config.values.set_text(field.substr(0, middle), field.substr(middle + 1));
    }
    return config;
  }
  void append(const std::string& record) {
    records.push_back(record);
    const std::string line = record + "\n";
    const std::size_t half = line.size() / 2;
    write_all(file_, line.substr(0, half));
    if (slow_) usleep(20);
    write_all(file_, line.substr(half));
    write_all(acknowledged_, "x");
  }
  static void write_all(int file, const std::string& text) {
    if (write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(91);
  }

  bool slow_;
  int file_, acknowledged_;
};

void run_tuning(const std::string& path, bool slow) {
  FakeBench bench(test::scan_model(0.5));
  bench.crashes = crashes;
  if (slow) bench.at_work = [] { usleep(200); };
  FileStore store(path, slow);
  TuningRunOptions options;
  options.seconds = 1e6;
  (void)tune_all(bench, all_targets(), store, options, bench.clock(), {}, small_space);
}

std::map<std::string, int> count_kinds(const std::vector<std::string>& records) {
  std::map<std::string, int> kinds;
  for (const std::string& record : records) ++kinds[FileStore::split(record)[0]];
  return kinds;
}
std::set<std::string> winners(const std::vector<std::string>& records) {
  std::set<std::string> found;
  for (const std::string& record : records) {
    if (record.starts_with("entry|")) found.insert(record);
  }
  return found;
}

TEST(KilledRun, K46_LosesWhatWasInFlightAndNothingElse) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("packjit-killed-{}", getpid());
  fs::create_directories(folder);
  const std::string undisturbed = folder / "undisturbed";
  run_tuning(undisturbed, false);
  const std::vector<std::string> expected = FileStore(undisturbed, false).records;
  const std::size_t space = small_space(kSpec, {"sm_90", 227 * 1024}).size();
  ASSERT_EQ(space, 24U);
  ASSERT_EQ(count_kinds(expected), (std::map<std::string, int>{{"entry", 3}, {"failed", 4}, {"tried", 3 * 20}}));

  constexpr int kKills = 200, kMostKillsOfAFile = 16;
  SplitMix64 random(static_cast<std::uint64_t>(getpid()));
  int kills = 0, finished = 0, resumed = 0;
  for (int file = 0; kills < kKills; ++file) {
    const std::string path = folder / fmt::format("run{}", file);
    std::size_t before = 0;
    int killed_here = 0;
    for (bool whole = false; !whole && kills < kKills;) {
      const pid_t child = fork();
      if (child == 0) {
        run_tuning(path, true);
        _exit(0);
      }
      // So that each file is finished once, whatever else the machine does.
      const bool undisturbed_now = killed_here == kMostKillsOfAFile;
      if (!undisturbed_now) {
        usleep(static_cast<useconds_t>(random.below(25'000)));
        kill(child, SIGKILL);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      whole = WIFEXITED(status);
      ASSERT_TRUE(!whole || WEXITSTATUS(status) == 0) << status;
      const std::vector<std::string> records = FileStore(path, false).records;
      if (!whole) {
        ++kills;
        ++killed_here;
        resumed += before > 0 ? 1 : 0;
      }
      // What the run was told to be safe is there, and nothing was done twice.
      const auto safe = fs::exists(path + ".acknowledged") ? fs::file_size(path + ".acknowledged") : 0;
      ASSERT_GE(records.size(), safe);
      ASSERT_LE(records.size(), safe + static_cast<std::size_t>(killed_here));
      ASSERT_GE(records.size(), before);
      ASSERT_EQ(std::set<std::string>(records.begin(), records.end()).size(), records.size());
      before = records.size();
      if (!whole) continue;
      ++finished;
      EXPECT_EQ(winners(records), winners(expected));
      EXPECT_EQ(count_kinds(records), count_kinds(expected));
    }
  }
  EXPECT_GE(finished, kKills / kMostKillsOfAFile);
  EXPECT_GT(resumed, 20);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace packjit
