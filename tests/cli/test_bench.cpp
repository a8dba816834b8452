#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>

#include "cli/bench_peers.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_rows.hpp"
#include "cli/spec_options.hpp"
#include "database/builtin_config.hpp"
#include "runtime/errors.hpp"
#include "tuning/batch_shape.hpp"
#include "tuning/limits.hpp"
#include "tuning/measure.hpp"
#include "tuning/operator_choices.hpp"

// The parts of `bench ops` that need no GPU.
namespace packjit {
namespace {

using Lengths = std::vector<std::int64_t>;

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

ShapeOptions shape_named(const std::string& name, std::int64_t tokens) {
  ShapeOptions options;
  options.shape = name;
  options.tokens = tokens;
  return options;
}

void expect_refused(const ShapeOptions& options, const std::string& words) {
  const std::vector<Document> documents = {{5, {}}, {3, {}}, {4, {}}};
  try {
    (void)batch_shape(options, documents);
    FAIL() << "taken: " << words;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(BatchShapes, LogNormalLengthsFillTheRow) {
  const BatchShape shape = batch_shape({}, {});
  EXPECT_EQ(shape.name, "packed");
  EXPECT_EQ(shape.batch(), 1);
  EXPECT_EQ(shape.tokens(), 32768);
  EXPECT_EQ(shape.real_tokens(), 32768);
  EXPECT_EQ(shape.longest(), 2048);
  const Lengths& lengths = shape.rows.front();
  EXPECT_TRUE(std::all_of(lengths.begin(), lengths.end() - 1, [](auto n) { return n >= 57 && n <= 2048; }));
  EXPECT_NEAR(32768.0 / static_cast<double>(lengths.size()), 640, 130);
  ShapeOptions other;
  other.seed = 2;
  EXPECT_NE(batch_shape(other, {}).rows, shape.rows);
}

TEST(BatchShapes, EachShapeHasItsLengths) {
  EXPECT_EQ(batch_shape(shape_named("one-sequence", 100), {}).rows, (std::vector<Lengths>{{100}}));
  EXPECT_EQ(batch_shape(shape_named("tiny", 40), {}).rows, (std::vector<Lengths>{{16, 16, 8}}));
  ShapeOptions equal = shape_named("equal", 9);
  equal.length = 3;
  EXPECT_EQ(batch_shape(equal, {}).rows, (std::vector<Lengths>{{3, 3, 3}}));
  ShapeOptions rows = shape_named("rows", 12);
  rows.rows = 3;
  const BatchShape shape = batch_shape(rows, {});
  EXPECT_EQ(shape.rows, (std::vector<Lengths>{{4}, {4}, {4}}));
  EXPECT_EQ(shape.seqlen, 4);
  EXPECT_EQ(boundaries_of(shape).form, Boundaries::Form::rows);
}

TEST(BatchShapes, LengthsOfAFileArePackedIntoRows) {
  // In order of arrival: 5 and 3 into the first row of 8, 4 and 2 into the second, 7 would be a third.
  const std::vector<Document> documents = {{5, {}}, {3, {}}, {4, {}}, {2, {}}, {7, {}}};
  ShapeOptions options;
  options.lengths_file = true;
  options.rows = 2;
  options.pack_length = 8;
  options.method = "next-fit";
  const BatchShape shape = batch_shape(options, documents);
  EXPECT_EQ(shape.rows, (std::vector<Lengths>{{5, 3}, {4, 2}}));
  EXPECT_EQ(shape.tokens(), 16);
  EXPECT_EQ(shape.real_tokens(), 14);
  const Boundaries boundaries = boundaries_of(shape);
  EXPECT_EQ(boundaries.form, Boundaries::Form::position_indices);
  EXPECT_EQ(boundaries.values, (Lengths{0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 0, 1, -1, -1}));
  EXPECT_EQ(build_sequence_map(boundaries, 2, 8).n_sequences, 4);
  const std::vector<SequencePlace> places = sequences_of(shape);
  ASSERT_EQ(places.size(), 4U);
  EXPECT_EQ(places[3].row, 1);
  EXPECT_EQ(places[3].start, 4);
  EXPECT_EQ(places[3].length, 2);
  const BatchShape padded = padded_shape(shape);
  EXPECT_EQ(padded.rows, (std::vector<Lengths>{{5}, {5}, {5}, {5}}));
  EXPECT_EQ(padded.seqlen, 5);

  options.rows = 9;
  expect_refused(options, "do not fill 9 rows of 8");
}

TEST(BatchShapes, WhatDoesNotGoTogetherIsRefused) {
  expect_refused(shape_named("square", 64), "no shape 'square'");
  expect_refused(shape_named("tiny", 0), "--tokens must be 1 to");
  expect_refused(shape_named("equal", 64), "--shape equal needs --length");
  ShapeOptions options = shape_named("equal", 64);
  options.length = 65;
  expect_refused(options, "--length 65 is more than --tokens 64");
  options = shape_named("tiny", 64);
  options.length = 4;
  expect_refused(options, "--length has no meaning with --shape tiny");
  options = shape_named("rows", 64);
  expect_refused(options, "--shape rows needs --rows");
  options.rows = 7;
  expect_refused(options, "cannot be shared equally by --rows 7");
  options.rows = 8;
  options.pack_length = 8;
  expect_refused(options, "--pack-length has no meaning with --shape rows");
  options = shape_named("packed", 64);
  options.method = "next-fit";
  expect_refused(options, "--method has no meaning");
  options.lengths_file = true;
  expect_refused(options, "give one");
  options.shape.reset();
  expect_refused(options, "--tokens has no meaning with --lengths");
  options.tokens.reset();
  expect_refused(options, "--lengths needs --rows");
  options.rows = 1;
  expect_refused(options, "--lengths needs --pack-length");
}

TEST(BenchLimits, CountsAreThoseOfTheContract) {
  Spec forward(Operator::ssm_pack_fwd), backward(Operator::ssm_pack_bwd);
  EXPECT_EQ(exponentials_per_element(forward), 19);  // docs/design.md, section 9
  EXPECT_EQ(instructions_per_element(forward), 105);
  EXPECT_EQ(exponentials_per_element(backward), 37);
  EXPECT_EQ(instructions_per_element(backward), 332);
  forward.values.set("softplus", 0);
  forward.values.set("z", 0);
  forward.values.set("d_state", 8);
  EXPECT_EQ(exponentials_per_element(forward), 8);
  EXPECT_EQ(instructions_per_element(forward), 65);
  Spec conv(Operator::conv1d_pack_fwd);
  EXPECT_EQ(exponentials_per_element(conv), 2);
  conv.values.set_text("activation", "none");
  EXPECT_EQ(exponentials_per_element(conv), 0);
}

TEST(BenchLimits, TheLargestOfThreeCounts) {
  // One multiprocessor at 1000 MHz: 16e9 exponentials and 128e9 instructions a second.
  const Rates rates{1e9, 1000, 1};
  const Limits memory = limits_of({2e6, 16e6, 128e6}, rates);
  EXPECT_DOUBLE_EQ(memory.memory_ms, 2);
  EXPECT_DOUBLE_EQ(memory.exponential_ms, 1);
  EXPECT_DOUBLE_EQ(memory.issue_ms, 1);
  EXPECT_EQ(memory.largest(), "memory");
  EXPECT_EQ(limits_of({2e6, 48e6, 128e6}, rates).largest(), "exponentials");
  EXPECT_EQ(limits_of({2e6, 48e6, 512e6}, rates).largest(), "issue");
  EXPECT_DOUBLE_EQ(limits_of({2e6, 48e6, 512e6}, rates).largest_ms(), 4);
}

TEST(BenchLimits, TheForwardAtFullClockOfAnH200) {
  // docs/design.md, section 9: about 220 G elements a second at 1.98 GHz for 19 exponentials.
  const Spec forward(Operator::ssm_pack_fwd);
  const double elements = 220e9;
  const Limits limits = limits_of({0, exponentials_per_element(forward) * elements, 0}, {1, 1980, 132});
  EXPECT_NEAR(limits.exponential_ms, 1000, 2);
}

TEST(BenchVariants, WithoutCheckpointsOfTheForwardThereIsOne) {
  const Spec conv = spec_for(Operator::conv1d_pack_bwd, {});
  const std::vector<Variant> variants = variants_of(conv);
  ASSERT_EQ(variants.size(), 1U);
  EXPECT_EQ(variants[0].label, "");
  EXPECT_EQ(variants[0].spec, conv);
}

TEST(BenchVariants, StoredCheckpointsAreAVariantAndSaveAPass) {
  static constexpr Field kFields[] = {{"d_state", 1, 512, 16, {}, ""},
                                      {"softplus", 0, 1, 1, {}, ""},
                                      {"z", 0, 1, 1, {}, ""},
                                      {"checkpoints", 0, 1, 0, {}, ""}};
  Spec spec(Operator::ssm_pack_bwd);
  spec.values = FieldValues(kFields);
  const std::vector<Variant> variants = variants_of(spec);
  ASSERT_EQ(variants.size(), 2U);
  EXPECT_EQ(variants[0].label, "recomputed");
  EXPECT_EQ(variants[0].spec.values["checkpoints"], 0);
  EXPECT_EQ(variants[1].label, "stored");
  EXPECT_EQ(variants[1].spec.values["checkpoints"], 1);
  EXPECT_EQ(exponentials_per_element(variants[0].spec), 37);
  EXPECT_EQ(exponentials_per_element(variants[1].spec), 20);
  EXPECT_EQ(instructions_per_element(variants[0].spec) - instructions_per_element(variants[1].spec), 64);
}

TEST(BenchVariants, SettingsGoToTheOperatorsTheyName) {
  const Spec forward(Operator::ssm_pack_fwd), backward(Operator::ssm_pack_bwd);
  const std::vector<std::string> settings = {"block=64", "ssm_pack_bwd.step_tokens=2"};
  EXPECT_EQ(with_settings(builtin_config(forward, "sm_90"), settings).values["block"], 64);
  EXPECT_EQ(with_settings(builtin_config(backward, "sm_90"), settings).values["block"], 64);
  EXPECT_EQ(with_settings(builtin_config(backward, "sm_90"), settings).values["step_tokens"], 2);
  for (const char* wrong : {"block", "=3", "ssm.block=64", "step_tokens=2", "block=0"}) {
    EXPECT_THROW((void)with_settings(builtin_config(forward, "sm_90"), std::vector<std::string>{wrong}),
                 std::invalid_argument);
  }
}

TEST(BenchVariants, BytesOfAllTensors) {
  Sizes sizes;
  sizes.batch = 2;
  sizes.seqlen = 10;
  sizes.dim = 8;
  sizes.conv_width = 4;
  const Spec conv = spec_for(Operator::conv1d_pack_fwd, {});
  // bf16: x and out, 160 elements each; weight, 32; bias, 8.
  EXPECT_EQ(tensor_bytes(conv, sizes), 2 * (160 + 160 + 32 + 8));
  EXPECT_EQ(saved_bytes(conv, spec_for(Operator::conv1d_pack_bwd, {}), sizes), 0);
  sizes.seqlen = 0;
  EXPECT_THROW((void)tensor_bytes(conv, sizes), std::logic_error);
}

TEST(BenchMeasure, SpreadOfKnownTimes) {
  std::vector<double> times(11);
  std::iota(times.rbegin(), times.rend(), 1.0);  // 11, 10, ... 1
  const Times spread = spread_of(times);
  EXPECT_EQ(spread.median_ms, 6);
  EXPECT_EQ(spread.low_ms, 2);
  EXPECT_EQ(spread.high_ms, 10);
  std::vector<double> one = {3};
  EXPECT_EQ(spread_of(one).high_ms, 3);
}

TEST(BenchMeasure, BuffersInTurnExceedTwiceTheCache) {
  constexpr std::int64_t kCache = 50 << 20;
  EXPECT_EQ(buffer_sets(CacheState::rotating, 101 << 20, kCache), 1);
  EXPECT_EQ(buffer_sets(CacheState::rotating, 100 << 20, kCache), 2);
  EXPECT_EQ(buffer_sets(CacheState::rotating, 10 << 20, kCache), 11);
  EXPECT_EQ(buffer_sets(CacheState::rotating, 1, kCache), 64);
  EXPECT_EQ(buffer_sets(CacheState::warm, 1, kCache), 1);
  EXPECT_EQ(buffer_sets(CacheState::cold, 1, kCache), 1);
  for (const char* name : {"rotating", "warm", "cold"}) EXPECT_EQ(name_of(cache_state_named(name)), name);
  EXPECT_THROW((void)cache_state_named("hot"), std::invalid_argument);
}

TEST(BenchMeasure, WhatFitsInMemory) {
  EXPECT_TRUE(fits_in_memory(90, 100));
  EXPECT_FALSE(fits_in_memory(91, 100));
}

BenchRow some_row() {
  BenchRow row;
  row.name = "ssm_pack_bwd";
  row.variant = "recomputed";
  row.way = "one_by_one";
  row.times = {2, 1.5, 123.25, 1755, 1980, 5};
  row.real_tokens = 1000;
  row.computed_tokens = 2000;
  row.dim = 4000;
  row.work = {8e6, 16e6, 32e6};
  row.limits = {0.25, 0.5, 1};
  row.config = "block=128";
  row.workspace_bytes = 80'000'000;
  row.saved_bytes = 16'000'000;
  return row;
}

BenchHeader some_header() {
  BenchHeader header;
  header.gpu.name = "a GPU";
  header.bytes_per_second = 4e12;
  header.shape = {"lengths", 8, {{5, 3}, {4, 2}}};
  header.repeats = 30;
  return header;
}

TEST(BenchReport, NumbersOfARow) {
  const nlohmann::json json = json_of(some_row());
  EXPECT_DOUBLE_EQ(json["giga_elements_per_second"], 2);  // 4e6 real elements in 2 ms
  EXPECT_EQ(json["limited_by"], "issue");
  EXPECT_DOUBLE_EQ(json["share_of_limit"], 0.5);
  EXPECT_DOUBLE_EQ(json["share_of_memory_limit"], 0.125);
  EXPECT_DOUBLE_EQ(json["workspace_bytes_per_element"], 10);
  EXPECT_DOUBLE_EQ(json["saved_bytes_per_element"], 2);
  EXPECT_EQ(json["bytes"], 8000000);
  const nlohmann::json header = json_of(some_header());
  EXPECT_EQ(header["tokens"], 16);
  EXPECT_EQ(header["real_tokens"], 14);
  EXPECT_EQ(header["lengths"].dump(), "[[5,3],[4,2]]");
}

TEST(BenchReport, TheTableHoldsEveryRowIn110Columns) {
  BenchRow skipped;
  skipped.name = "ssm_pack_fwd";
  skipped.way = "padded";
  skipped.skipped = "54 rows of 2048 need 170.0 GB, the GPU has 150.8 GB";
  BenchRow padded = some_row();
  padded.way = "padded";
  const PeerRow peer{"ssm_pack_fwd+bwd", "mamba_ssm", "one_by_one", "", 11.3, 11.2, 11.4, 12.5};
  const std::string table = bench_table(std::vector<BenchRow>{some_row(), skipped, padded}, std::vector<PeerRow>{peer});
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
  for (const char* part :
       {"ssm_pack_bwd recomputed", "2.0000", "123.2500", "issue", "50 %", "1755-1980",
        "skipped: 54 rows of 2048 need 170.0 GB", "ssm_pack_fwd+bwd official", "11.3000", "12.5",
        "padded computes all 2000 tokens, 1000 of them real", "workspace bytes", "80000000", "10.00", "16000000"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

/// The fields that a page's tables name in their first column, as `name`.
std::set<std::string> documented_fields(const std::string& page) {
  std::set<std::string> fields;
  std::istringstream lines(page);
  const std::regex name("`([a-z0-9_]+)`");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator at(cell.begin(), cell.end(), name), end; at != end; ++at) fields.insert((*at)[1]);
  }
  return fields;
}

TEST(BenchReport, ThePageNamesEveryFieldAndNoOther) {
  std::set<std::string> fields = {"operators", "variants", "compared", "together", "peers", "skipped"};
  const nlohmann::json row = json_of(some_row()), header = json_of(some_header());
  for (const nlohmann::json* object : {&row, &header}) {
    for (const auto& entry : object->items()) fields.insert(entry.key());
  }
  EXPECT_EQ(documented_fields(read_file(PACKJIT_ROOT "/docs/bench_ops.md")), fields);
}

TEST(BenchReport, TheCommandIsThatWhichWasGiven) {
  CLI::App app;
  std::string file, unused = "x";
  std::vector<std::string> set;
  bool json = false;
  app.add_option("--lengths", file);
  app.add_option("--unused", unused);
  app.add_option("--set", set);
  app.add_flag("--json", json);
  app.parse("--set a=1 b=2 --lengths '/some/where/my lengths.txt' --json", false);
  EXPECT_EQ(given_options(app, {"--lengths"}), " --lengths 'my lengths.txt' --set a=1 b=2 --json");
}

/// A stand-in for a Python, called as `-c SCRIPT --report FILE --out FILE`.
class Stand {
 public:
  explicit Stand(const std::string& body) {
    path = testing::TempDir() + "/stand in for python " + std::to_string(getpid());
    std::ofstream(path) << "#!/bin/sh\nreport=$4 out=$6\n" << body << "\n";
    chmod(path.c_str(), 0700);
  }
  ~Stand() { std::filesystem::remove(path); }
  Stand(const Stand&) = delete;
  Stand& operator=(const Stand&) = delete;
  std::string path;
};

TEST(BenchPeers, RowsOfTheScriptAreMerged) {
  const Stand python(
      "test \"$1\" = -c && test \"$3\" = --report && test \"$5\" = --out || exit 1\n"
      "echo \"a warning\"\n"
      "lengths=$(cat \"$report\")\n"
      "cat >\"$out\" <<END\n"
      "{\"asked\": $lengths, \"rows\": [\n"
      "  {\"operator\": \"ssm_pack_fwd\", \"peer\": \"mamba_ssm\", \"way\": \"padded\", \"median_ms\": 7.5,\n"
      "   \"p10_ms\": 7, \"p90_ms\": 8, \"giga_elements_per_second\": 17.25},\n"
      "  {\"operator\": \"ssm_pack\", \"peer\": \"mamba_ssm\", \"way\": \"rows\", \"skipped\": \"too little "
      "memory\"}]}\n"
      "END");
  const nlohmann::json report = run_peers(python.path, {{"lengths", {{5, 3}}}});
  EXPECT_EQ(report["asked"]["lengths"].dump(), "[[5,3]]");
  const std::vector<PeerRow> rows = peer_rows(report);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].way, "padded");
  EXPECT_EQ(rows[0].median_ms, 7.5);
  EXPECT_EQ(rows[0].giga_elements_per_second, 17.25);
  EXPECT_EQ(rows[1].skipped, "too little memory");
  EXPECT_THROW((void)peer_rows({{"rows", {{{"operator", "x"}}}}}), std::runtime_error);
}

TEST(BenchPeers, WhatIsMissingIsSaid) {
  const auto message = [](const std::string& python) {
    try {
      (void)run_peers(python, {});
    } catch (const EnvironmentError& error) {
      return std::string(error.what());
    }
    return std::string("no EnvironmentError");
  };
  EXPECT_NE(message(Stand("echo torch cannot be imported >&2; exit 3").path).find("torch cannot be imported"),
            std::string::npos);
  EXPECT_NE(message("/no/such/python").find("/no/such/python"), std::string::npos);
  EXPECT_THROW((void)run_peers(Stand("exit 1").path, {}), std::runtime_error);
  EXPECT_THROW((void)run_peers(Stand("exit 0").path, {}), std::runtime_error);
}

TEST(BenchPeers, TheProgramCarriesTheScript) {
  EXPECT_EQ(peers_script(), read_file(PACKJIT_ROOT "/scripts/bench_peers.py"));
}

}  // namespace
}  // namespace packjit
