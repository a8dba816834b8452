#include "database/database.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/database/database_helpers.hpp"
#include "tests/message_of.hpp"

namespace packjit::test {
namespace {

using Json = nlohmann::json;

std::string golden() {
  std::ifstream file(std::filesystem::path(PACKJIT_GOLDEN) / "database_v1.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The golden document after a change of one place.
std::string changed(const std::string& pointer, const Json& value) {
  Json document = Json::parse(golden());
  document[Json::json_pointer(pointer)] = value;
  return document.dump();
}
std::string without(const std::string& pointer) {
  Json document = Json::parse(golden());
  const Json::json_pointer at(pointer);
  document[at.parent_pointer()].erase(at.back());
  return document.dump();
}

TEST(Database, GoldenFileIsReadAndWrittenBack) {
  const Database database = parse_database(golden());
  ASSERT_EQ(database.entries.size(), 2U);
  const Entry& conv = database.entries[0];
  EXPECT_EQ(conv.spec, Spec(Operator::conv1d_pack_fwd));
  EXPECT_EQ(conv.bucket, (Bucket{1536, 4096, 0, 0}));
  EXPECT_EQ(conv.config.values["tile_tokens"], 24);
  EXPECT_EQ(conv.measured, (Workload{4096, 8, 1536, 512}));
  EXPECT_EQ(conv.time.median_ms, 0.25);
  EXPECT_EQ(conv.time.rounds, 50);
  EXPECT_EQ(conv.check.method, "fp64 oracle");
  EXPECT_EQ(conv.check.error, 0.125);
  EXPECT_EQ(conv.gpu.shared_bytes_per_block, 232'448);
  EXPECT_EQ(conv.date, "2026-03-14");
  EXPECT_EQ(database.entries[1].spec.op, Operator::ssm_pack_bwd);
  EXPECT_EQ(database.entries[1].bucket, (Bucket{4096, 32'768, 16, 512}));
  ASSERT_EQ(database.failed.size(), 1U);
  EXPECT_EQ(database.failed[0].reason, "out: 3 of 4096 values differ");
  EXPECT_TRUE(database.unusable.empty());
  EXPECT_EQ(write_database(database), golden());
  EXPECT_EQ(write_database(parse_database(write_database(database, DatabaseLayout::single))), golden());
}

TEST(Database, AnEmptyOneIsADocumentToo) {
  const std::string text = write_database({});
  EXPECT_EQ(write_database(parse_database(text)), text);
  EXPECT_FALSE(parse_database(text).gpu);
}

TEST(Database, DamageIsNamedWithItsPlace) {
  const auto message = [](const std::string& text) { return message_of([&] { (void)parse_database(text); }); };
  EXPECT_EQ(message("").rfind("not JSON: parse error at line 1, column 1: ", 0), 0U);
  EXPECT_EQ(message("[]"), "the document: expected an object, found []");
  EXPECT_EQ(message("{}"), "format is missing");
  EXPECT_EQ(message(changed("/format", "x")), "format: expected 'packjit tuning database', found 'x'");
  EXPECT_EQ(message(without("/version/major")), "version.major is missing");
  EXPECT_EQ(message(changed("/version/major", 0)), "version.major: expected an integer of 1 or more, found 0");
  EXPECT_EQ(message(changed("/entries", 3)), "entries: expected a list, found 3");
  EXPECT_EQ(message(without("/gpu")), "entries[0]: the document names no GPU that this was measured on");
  EXPECT_EQ(message(changed("/gpu/l2_bytes", -1)), "gpu.l2_bytes: expected an integer of 0 or more, found -1");
  EXPECT_EQ(message(changed("/gpu/l2_bytes", 1.5)), "gpu.l2_bytes: expected an integer of 0 or more, found 1.5");
  EXPECT_EQ(message(changed("/gpu/multiprocessors", 1LL << 40)),
            "gpu.multiprocessors: expected an integer of 31 bits, found 1099511627776");
  EXPECT_EQ(message(changed("/entries/1/time/median_ms", "fast")),
            "entries[1].time.median_ms: expected a number of 0 or more, found \"fast\"");
  EXPECT_EQ(message(without("/entries/1/source_digest")), "entries[1].source_digest is missing");
  EXPECT_EQ(message(changed("/failed/0/reason", nullptr)), "failed[0].reason: expected a text, found null");
  EXPECT_EQ(message(std::string(100'000, '[')), "more than 32 objects and lists are inside each other");
  for (std::size_t length = 0; length + 2 < golden().size(); ++length) {  // the end is a brace and a newline
    EXPECT_NE(message(golden().substr(0, length)), "nothing was thrown") << length;
  }
}

TEST(Database, ANewerMajorVersionIsRefused) {
  EXPECT_EQ(message_of<NewerDatabase>([] { (void)parse_database(changed("/version/major", 2)); }),
            "it has version 2.0, and this packjit reads versions up to 1.x; use a newer packjit for it");
}

TEST(Database, FieldsOfANewerMinorVersionAreKept) {
  Json document = Json::parse(golden());
  document["version"]["minor"] = 7;
  document["version"]["draft"] = true;
  document["notes"] = {{"a", 1}};
  document["gpu"]["hbm"] = "3e";
  document["entries"][0]["time"]["p99_ms"] = 0.5;
  document["entries"][0]["energy_mj"] = 12;
  document["failed"][0]["signal"] = 11;
  const Database database = parse_database(document.dump());
  EXPECT_EQ(database.entries.size(), 2U);
  EXPECT_EQ(Json::parse(write_database(database)), document);
  // Also through a merge with what does not have them.
  EXPECT_EQ(Json::parse(write_database(merge(parse_database(golden()), database)))["notes"], document["notes"]);
}

/// A record of the golden document that is changed so that it cannot be used: kept, and reported.
void expect_unusable(const std::string& pointer, const Json& value, const std::string& reason) {
  const std::string text = changed(pointer, value);
  const Database database = parse_database(text);
  EXPECT_EQ(database.entries.size(), 1U);
  ASSERT_EQ(database.unusable.size(), 1U);
  EXPECT_EQ(database.unusable[0].reason, reason);
  const Json written = Json::parse(write_database(database)), before = Json::parse(text);
  EXPECT_EQ(written["entries"].size(), 2U);
  EXPECT_NE(std::ranges::find(written["entries"], before["entries"][1]), written["entries"].end());
  EXPECT_NE(std::ranges::find(written["entries"], before["entries"][0]), written["entries"].end());
}

TEST(Database, AnImpossibleEntryIsKeptAndNotUsed) {
  expect_unusable("/entries/0/config/warp_speed", 9,
                  "entries[0].config has a field 'warp_speed' that this packjit does not know");
  expect_unusable("/entries/0/spec/colour", "blue",
                  "entries[0].spec has a field 'colour' that this packjit does not know");
  expect_unusable("/entries/0/operator", "matmul",
                  "there is no operator 'matmul'; the operators are conv1d_pack_fwd, conv1d_pack_bwd, ssm_pack_fwd and "
                  "ssm_pack_bwd");
  expect_unusable("/entries/0/config/tile_tokens", 5000,
                  "entries[0].config: tile_tokens = 5000 is out of range: expected an integer from 1 to 4096");
  expect_unusable("/entries/0/config/tile_tokens", 0.5,
                  "entries[0].config.tile_tokens: expected a text or an integer, found 0.5");
  expect_unusable("/entries/0/spec/dtype", "fp8",
                  "entries[0].spec: dtype = 'fp8' is not understood: expected one of fp32, fp16, bf16");
  expect_unusable("/entries/0/config/block", 33, "impossible config: block = 33 must be a multiple of 32 threads");
}

TEST(Database, WithoutAPassedCheckNoEntryIsUsedOrAdded) {
  expect_unusable("/entries/0/check/method", "", "no numerical check was passed: check.method is empty");
  expect_unusable("/entries/0/check/error", 1.5,
                  "the numerical check was not passed: check.error is 1.5, a share of the bound, expected 0 to 1");
  Database database;
  Entry entry = test_entry();
  entry.check.error = std::nan("");
  EXPECT_NE(message_of([&] { add(database, entry); }).find("the numerical check was not passed"), std::string::npos);
  entry.check = {"", 0};
  EXPECT_NE(message_of([&] { add(database, entry); }).find("check.method is empty"), std::string::npos);
  entry = test_entry();
  entry.time.median_ms = 0;
  EXPECT_NE(message_of([&] { add(database, entry); }).find("its times are none"), std::string::npos);
  entry = test_entry();
  entry.date = "yesterday";
  EXPECT_NE(message_of([&] { add(database, entry); }).find("date is 'yesterday', expected YYYY-MM-DD"),
            std::string::npos);
  entry = test_entry();
  entry.bucket.tokens = 8192;
  EXPECT_NE(message_of([&] { add(database, entry); }).find("is of another bucket (dim 1536, tokens 4096"),
            std::string::npos);
  EXPECT_TRUE(database.entries.empty());
  EXPECT_FALSE(database.gpu);
}

TEST(Database, HoldsOneGpuModel) {
  Database database;
  add(database, test_entry());
  Entry other = test_entry(8192);
  other.gpu.multiprocessors = 114;
  const std::string message = message_of([&] { add(database, other); });
  EXPECT_NE(message.find("this one is of Test GPU (sm_90, 132 multiprocessors"), std::string::npos) << message;
  EXPECT_EQ(database.entries.size(), 1U);
  other.gpu = test_gpu();
  other.gpu.name = "Another label";  // never compared
  add(database, other);
  EXPECT_EQ(database.entries.size(), 2U);
}

TEST(Database, TheBetterEntryStays) {
  const auto winner = [](Entry a, Entry b) {
    Database database;
    a.tried = 1;
    b.tried = 2;
    add(database, a);
    add(database, b);
    EXPECT_EQ(database.entries.size(), 1U);
    return database.entries[0].tried;
  };
  const Entry base = test_entry();
  Entry other = base;
  other.time = {0.125, 0.125, 0.125, 50};
  EXPECT_EQ(winner(base, other), 2);  // the lower median
  EXPECT_EQ(winner(other, base), 1);
  other.date = "2026-03-13";
  EXPECT_EQ(winner(base, other), 1);  // not where it is older
  other.date = "2026-03-14T10:00:00Z";
  EXPECT_EQ(winner(base, other), 2);
  other = test_entry(4096, 2);
  other.nvrtc = "12.10";
  EXPECT_EQ(winner(base, other), 2);  // 12.10 came after 12.9
  other = test_entry(4096, 2);
  other.driver = "9.9";
  EXPECT_EQ(winner(base, other), 1);
}

/// Databases of a few places each, with all that the order looks at and many ties.
Database random_database(std::mt19937& random) {
  Database database;
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  for (auto n = random() % 6; n > 0; --n) {
    Entry entry = test_entry(one_of(1024, 2048, 4096), one_of(0.25, 0.5));
    entry.date = one_of("2026-03-14", "2026-03-15", "2026-03-14T01:02:03Z");
    entry.nvrtc = one_of("12.9", "12.10");
    entry.driver = one_of("13.0", "12.8");
    entry.tried = one_of(1, 2);
    entry.gpu.name = one_of("one label", "another");
    if (random() % 3 == 0) entry.unknown = {{"note", one_of("a", "b")}};
    add(database, entry);
  }
  for (auto n = random() % 3; n > 0; --n) {
    FailedCandidate failed = test_failure(one_of(64, 128));
    failed.reason = one_of("it faulted", "it hung", "it was wrong");
    add(database, failed);
  }
  if (random() % 2 == 0) database.unusable.push_back({random() % 2 == 0, {{"n", one_of(1, 2)}}, "a reason"});
  if (random() % 2 == 0) database.unknown = {{"more", {{one_of("x", "y"), one_of(1, 2)}}}, {"flat", one_of(3, 4)}};
  if (random() % 4 == 0) database.unknown["more"] = 5;
  return database;
}

TEST(Database, MergingIsCommutativeAssociativeAndIdempotent) {
  std::mt19937 random(11);
  int differ = 0;
  for (int i = 0; i < 300; ++i) {
    const Database a = random_database(random), b = random_database(random), c = random_database(random);
    const std::string ab = write_database(merge(a, b));
    EXPECT_EQ(ab, write_database(merge(b, a)));
    EXPECT_EQ(write_database(merge(merge(a, b), c)), write_database(merge(a, merge(b, c))));
    EXPECT_EQ(write_database(merge(a, a)), write_database(a));
    EXPECT_EQ(write_database(merge(merge(a, b), b)), ab);
    differ += ab != write_database(a) && ab != write_database(b) ? 1 : 0;
  }
  EXPECT_GT(differ, 100);
}

TEST(Database, TheOrderOfAddingChangesNothing) {
  std::mt19937 random(5);
  std::vector<Entry> entries;
  for (int i = 0; i < 40; ++i) {
    for (const Entry& entry : random_database(random).entries) entries.push_back(entry);
  }
  std::string first;
  for (int i = 0; i < 20; ++i) {
    std::ranges::shuffle(entries, random);
    Database database;
    for (const Entry& entry : entries) add(database, entry);
    EXPECT_EQ(database.entries.size(), 3U);
    if (first.empty()) first = write_database(database);
    EXPECT_EQ(write_database(database), first);
  }
}

TEST(Database, DiffNamesWhatIsOnOneSideAndWhatChanged) {
  Database a, b;
  add(a, test_entry(1024));
  add(a, test_entry(2048));
  add(a, test_entry(4096));
  add(b, test_entry(2048));
  add(b, test_entry(4096, 0.125));
  add(b, test_entry(8192));
  add(b, test_failure());
  const DatabaseDifference found = diff(a, b);
  ASSERT_EQ(found.only_a.size(), 1U);
  EXPECT_EQ(found.only_a[0].bucket.tokens, 1024);
  ASSERT_EQ(found.only_b.size(), 1U);
  EXPECT_EQ(found.only_b[0].bucket.tokens, 8192);
  ASSERT_EQ(found.changed.size(), 1U);
  EXPECT_EQ(found.changed[0].first.time.median_ms, 0.25);
  EXPECT_EQ(found.changed[0].second.time.median_ms, 0.125);
  EXPECT_TRUE(found.failed_only_a.empty());
  EXPECT_EQ(found.failed_only_b.size(), 1U);
}

TEST(Database, PruneRemovesWhatTheRulesSay) {
  Database database;
  add(database, test_entry(1024));
  Entry other = test_entry(2048);
  other.source_digest = "of another source";
  add(database, other);
  add(database, test_failure());
  database.unusable.push_back({false, Json::object(), "no reason"});
  Database copy = database;
  EXPECT_TRUE(prune(copy, {}).empty());
  EXPECT_EQ(write_database(copy), write_database(database));
  const auto digest = [](const Spec&, const Config&) { return std::string("0123456789abcdef0123456789abcdef"); };
  const std::vector<std::string> removed = prune(copy, {.source_digest = digest});
  ASSERT_EQ(removed.size(), 2U);
  EXPECT_NE(removed[0].find("tokens 2048): its source was another (digest of another source, now 0123456789abcdef"),
            std::string::npos)
      << removed[0];
  ASSERT_EQ(copy.entries.size(), 1U);
  EXPECT_EQ(copy.entries[0].bucket.tokens, 1024);
  EXPECT_TRUE(copy.failed.empty());
  EXPECT_EQ(prune(database, {.unusable = true, .failed = true}).size(), 2U);
  EXPECT_EQ(database.entries.size(), 2U);
  EXPECT_TRUE(database.failed.empty() && database.unusable.empty());
}

}  // namespace
}  // namespace packjit::test
