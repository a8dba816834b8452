// Packing through the C interface and the C++ headers over it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "packjit/packjit.hpp"
#include "tests/api/handles.hpp"

namespace packjit::testing {
namespace {

using PackerHandle = std::unique_ptr<packjit_packer, Releaser<packjit_packer, packjit_packer_release>>;

packjit_packer_options options_of(std::int64_t pack_length, std::int64_t rows = 1) {
  packjit_packer_options options{};
  options.struct_size = sizeof(options);
  options.pack_length = pack_length;
  options.rows = rows;
  return options;
}

packjit_documents documents_of(const std::vector<std::int64_t>& lengths) {
  return {sizeof(packjit_documents), static_cast<std::int64_t>(lengths.size()), lengths.data(), nullptr, nullptr};
}

PackerHandle make_packer(const packjit_packer_options& options, const std::vector<std::int64_t>& lengths) {
  const packjit_documents documents = documents_of(lengths);
  packjit_packer* packer = nullptr;
  EXPECT_DONE(packjit_packer_create(&options, &documents, &packer));
  return PackerHandle(packer);
}

packjit_step next_of(const PackerHandle& packer) {
  packjit_step step{};
  step.struct_size = sizeof(step);
  EXPECT_DONE(packjit_packer_next(packer.get(), &step));
  return step;
}

packjit_packer_info info_of(const PackerHandle& packer) {
  packjit_packer_info info{};
  info.struct_size = sizeof(info);
  EXPECT_DONE(packjit_packer_get_info(packer.get(), &info));
  return info;
}

packjit_packer_position position_of(const PackerHandle& packer) {
  packjit_packer_position position{};
  position.struct_size = sizeof(position);
  EXPECT_DONE(packjit_packer_get_position(packer.get(), &position));
  return position;
}

template <typename T>
std::vector<T> copied(const T* first, std::int64_t count) {
  return {first, first + count};
}

bool same(const packjit_piece& a, const packjit_piece& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

std::vector<std::int64_t> mixed_lengths() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 60; ++i) lengths.push_back(1 + i * 37 % 41);
  return lengths;
}

TEST(Packer, ADocumentInThreeStepsWithAllItsArrays) {
  packjit_packer_options options = options_of(4, 2);
  options.loss_unit = PACKJIT_LOSS_PER_DOCUMENT;
  const PackerHandle packer = make_packer(options, {10});
  const packjit_packer_info info = info_of(packer);
  EXPECT_EQ(info.steps, 3);
  EXPECT_EQ(info.max_seqlen, 4);
  EXPECT_EQ(info.max_sequences, 2);  // the pieces of 2 and 4 tokens would fit into 8, that of 4 more would not

  const packjit_step first = next_of(packer);
  EXPECT_EQ((std::vector<std::int64_t>{first.epoch, first.step, first.steps, first.rows, first.pack_length,
                                       first.tokens, first.max_seqlen, first.n_pieces}),
            (std::vector<std::int64_t>{0, 0, 3, 2, 4, 4, 4, 1}));
  EXPECT_TRUE(same(first.pieces[0], {0, 0, 4, 0, 0, 1, -1, -1}));

  const packjit_step second = next_of(packer);
  EXPECT_TRUE(same(second.pieces[0], {0, 4, 4, 0, 0, 1, 0, 0}));

  const packjit_step third = next_of(packer);
  ASSERT_EQ(third.n_pieces, 1);
  EXPECT_TRUE(same(third.pieces[0], {0, 8, 2, 0, 0, 0, 1, 0}));
  EXPECT_EQ(third.step, 2);
  EXPECT_EQ(copied(third.position_indices, 8), (std::vector<std::int32_t>{0, 1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(copied(third.seq_idx, 8), (std::vector<std::int32_t>{0, 0, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(copied(third.cu_seqlens, third.n_cu_seqlens), (std::vector<std::int64_t>{0, 2, 4, 8}));
  EXPECT_EQ(copied(third.document_ids, 8), (std::vector<std::int64_t>{0, 0, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(copied(third.document_offsets, 8), (std::vector<std::int64_t>{8, 9, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(copied(third.loss_weights, 8), (std::vector<float>{1.0F / 9, 0, 0, 0, 0, 0, 0, 0}));

  EXPECT_EQ(next_of(packer).epoch, 1);
}

TEST(Packer, CutsAtBreakPointsWithinTheSlack) {
  const std::vector<std::int64_t> lengths = {3, 10}, breaks = {2, 3, 7}, offsets = {0, 1, 3};
  packjit_documents documents = documents_of(lengths);
  documents.breaks = breaks.data();
  documents.break_offsets = offsets.data();
  const auto ends_of_the_long_one = [&](std::int64_t slack) {
    packjit_packer_options options = options_of(4);
    options.cut_slack = slack;
    packjit_packer* made = nullptr;
    EXPECT_DONE(packjit_packer_create(&options, &documents, &made));
    const PackerHandle packer(made);
    std::set<std::int64_t> ends;
    for (std::int64_t i = info_of(packer).steps; i > 0; --i) {
      const packjit_step step = next_of(packer);
      for (std::int64_t p = 0; p < step.n_pieces; ++p) {
        if (step.pieces[p].document == 1) ends.insert(step.pieces[p].offset + step.pieces[p].length);
      }
    }
    return ends;
  };
  EXPECT_EQ(ends_of_the_long_one(0), (std::set<std::int64_t>{3, 7, 10}));
  EXPECT_EQ(ends_of_the_long_one(1), (std::set<std::int64_t>{3, 7, 10}));
  EXPECT_EQ(ends_of_the_long_one(-1), (std::set<std::int64_t>{4, 8, 10}));
}

TEST(Packer, RanksTogetherHaveEveryTokenOnceAnEpochInStepsOfOneShape) {
  const std::vector<std::int64_t> lengths = mixed_lengths();
  for (const char* method : {"next-fit", "local-greedy", "ffd", "bfd", "length-groups", "balanced"}) {
    packjit_packer_options options = options_of(16, 3);
    options.method = method;
    options.ranks = 4;
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    std::int64_t tokens = 0;
    std::set<std::int64_t> steps;
    for (options.rank = 0; options.rank < 4; ++options.rank) {
      const PackerHandle packer = make_packer(options, lengths);
      const packjit_packer_info info = info_of(packer);
      steps.insert(info.steps);
      for (std::int64_t i = 0; i < info.steps; ++i) {
        const packjit_step step = next_of(packer);
        ASSERT_EQ(step.rows * step.pack_length, 48);
        EXPECT_LE(step.n_pieces, info.max_sequences);
        EXPECT_LE(step.max_seqlen, info.max_seqlen);
        for (std::int64_t t = 0; t < 48; ++t) {
          EXPECT_EQ(step.document_ids[t] < 0, step.position_indices[t] < 0);
          EXPECT_EQ(step.document_ids[t] < 0, step.seq_idx[t] < 0);
          if (step.document_ids[t] < 0) {
            EXPECT_EQ(step.loss_weights[t], 0);
            continue;
          }
          ++tokens;
          seen.emplace(step.document_ids[t], step.document_offsets[t]);
          const packjit_piece& piece = step.pieces[step.seq_idx[t]];
          EXPECT_EQ(piece.document, step.document_ids[t]);
          EXPECT_EQ(piece.row * 16 + piece.start + step.position_indices[t], t);
          EXPECT_EQ(piece.offset + step.position_indices[t], step.document_offsets[t]);
          const bool is_last = step.document_offsets[t] + 1 == lengths[static_cast<std::size_t>(piece.document)];
          EXPECT_EQ(step.loss_weights[t], is_last ? 0 : 1);
        }
      }
    }
    EXPECT_EQ(steps.size(), 1U) << method;
    EXPECT_EQ(tokens, 1262) << method;  // of 1 + i * 37 % 41 for i below 60
    EXPECT_EQ(seen.size(), 1262U) << method;
  }
}

TEST(Packer, HandOversNameTheSlotOfThePieceBefore) {
  packjit_packer_options options = options_of(16, 2);
  options.min_piece = 3;
  const PackerHandle packer = make_packer(options, mixed_lengths());
  std::vector<std::vector<packjit_piece>> steps;
  std::int64_t handed = 0;
  for (std::int64_t i = info_of(packer).steps; i > 0; --i) {
    const packjit_step step = next_of(packer);
    steps.push_back(copied(step.pieces, step.n_pieces));
    for (const packjit_piece& piece : steps.back()) {
      EXPECT_EQ(piece.offset > 0, piece.from_step >= 0);
      if (piece.offset == 0) continue;
      ASSERT_LT(piece.from_step, step.step);
      const packjit_piece& before =
          steps[static_cast<std::size_t>(piece.from_step)].at(static_cast<std::size_t>(piece.from_slot));
      EXPECT_EQ(before.document, piece.document);
      EXPECT_EQ(before.offset + before.length, piece.offset);
      EXPECT_EQ(before.more, 1);
      ++handed;
    }
  }
  EXPECT_GT(handed, 30);
}

TEST(Packer, ResumedItGoesOnAsIfNothingHadHappened) {
  packjit_packer_options options = options_of(16, 2);
  options.ranks = 2;
  options.rank = 1;
  options.seed = 5;
  const PackerHandle packer = make_packer(options, mixed_lengths());
  const std::int64_t steps = info_of(packer).steps;
  for (std::int64_t i = 0; i < steps + 5; ++i) (void)next_of(packer);
  const packjit_packer_position position = position_of(packer);
  EXPECT_EQ(position.epoch, 1);
  EXPECT_EQ(position.step, 5);

  const PackerHandle resumed = make_packer(options, mixed_lengths());
  ASSERT_DONE(packjit_packer_resume(resumed.get(), &position));
  for (int i = 0; i < 20; ++i) {
    const packjit_step a = next_of(packer), b = next_of(resumed);
    EXPECT_EQ(a.epoch, b.epoch);
    EXPECT_EQ(a.step, b.step);
    ASSERT_EQ(a.n_pieces, b.n_pieces);
    for (std::int64_t p = 0; p < a.n_pieces; ++p) EXPECT_TRUE(same(a.pieces[p], b.pieces[p]));
    EXPECT_EQ(copied(a.position_indices, 32), copied(b.position_indices, 32));
  }
}

TEST(Packer, APositionOfOthersIsRefusedAndNothingChanges) {
  const PackerHandle packer = make_packer(options_of(16), mixed_lengths());
  (void)next_of(packer);
  const packjit_packer_position here = position_of(packer);
  packjit_packer_position other = here;
  other.fingerprint ^= 1;
  EXPECT_EQ(packjit_packer_resume(packer.get(), &other), PACKJIT_BAD_ARGUMENT);
  other = here;
  other.epoch = 3;
  other.step = 1'000'000;
  EXPECT_EQ(packjit_packer_resume(packer.get(), &other), PACKJIT_BAD_ARGUMENT);
  EXPECT_NE(std::string(packjit_last_error()).find("found 1000000"), std::string::npos) << packjit_last_error();
  EXPECT_EQ(position_of(packer).epoch, 0);
  EXPECT_EQ(position_of(packer).step, 1);
  EXPECT_EQ(next_of(packer).step, 1);
}

TEST(Packer, APositionOfAnotherLossIsRefused) {
  packjit_packer_options options = options_of(16);
  const auto make = [&](std::int32_t loss_unit, std::int32_t last_token) {
    options.loss_unit = loss_unit;
    options.last_token = last_token;
    return make_packer(options, mixed_lengths());
  };
  const std::pair<std::int32_t, std::int32_t> losses[] = {{PACKJIT_LOSS_PER_TOKEN, PACKJIT_LAST_TOKEN_IS_DROPPED},
                                                          {PACKJIT_LOSS_PER_TOKEN, PACKJIT_LAST_TOKEN_COUNTS},
                                                          {PACKJIT_LOSS_PER_DOCUMENT, PACKJIT_LAST_TOKEN_IS_DROPPED},
                                                          {PACKJIT_LOSS_PER_DOCUMENT, PACKJIT_LAST_TOKEN_COUNTS}};
  for (const auto& [unit, last] : losses) {
    const PackerHandle packer = make(unit, last);
    (void)next_of(packer);
    const packjit_packer_position position = position_of(packer);
    for (const auto& [other_unit, other_last] : losses) {
      const PackerHandle resumed = make(other_unit, other_last);
      const bool is_same = unit == other_unit && last == other_last;
      EXPECT_EQ(packjit_packer_resume(resumed.get(), &position), is_same ? PACKJIT_OK : PACKJIT_BAD_ARGUMENT);
    }
  }
}

TEST(Packer, StatisticsCountThePaddingOfWholeSteps) {
  packjit_packer_options options = options_of(4, 2);
  options.ranks = 2;
  const PackerHandle packer = make_packer(options, {10, 1});
  packjit_packer_statistics statistics{};
  statistics.struct_size = sizeof(statistics);
  ASSERT_DONE(packjit_packer_get_statistics(packer.get(), &statistics));
  // 3 steps of 2 ranks with 2 rows of 4: the long document is on one rank in pieces of 4, 4 and 2.
  EXPECT_EQ(statistics.documents, 2);
  EXPECT_EQ(statistics.documents_cut, 1);
  EXPECT_EQ(statistics.pieces, 4);
  EXPECT_EQ(statistics.tokens, 11);
  EXPECT_EQ(statistics.slots, 48);
  EXPECT_DOUBLE_EQ(statistics.fill_rate, 11.0 / 48);
  EXPECT_DOUBLE_EQ(statistics.mean_handover_distance, 1);
  EXPECT_EQ(statistics.largest_handover_distance, 1);
}

TEST(Packer, AStepOfPaddingAloneMakesAMap) {
  const DeviceHandle device = open_host();
  packjit_packer_options options = options_of(4);
  options.ranks = 2;
  std::int64_t empty_steps = 0;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    const PackerHandle packer = make_packer(options, {9, 1});
    const packjit_packer_info info = info_of(packer);
    for (std::int64_t i = 0; i < info.steps; ++i) {
      const packjit_step step = next_of(packer);
      empty_steps += step.n_pieces == 0;
      const MapHandle map =
          map_from_positions(device, copied(step.position_indices, 4), nullptr, info.max_sequences, info.max_seqlen);
      packjit_map_info map_info{};
      map_info.struct_size = sizeof(map_info);
      EXPECT_DONE(packjit_map_get_info(map.get(), &map_info));
      EXPECT_EQ(map_info.n_sequences, info.max_sequences);
    }
  }
  EXPECT_EQ(empty_steps, 2);
}

TEST(Packer, BadInputIsRefusedWithItsName) {
  struct Bad {
    std::function<void(packjit_packer_options&, packjit_documents&)> spoil;
    const char* message;
  };
  static const std::int64_t kNegative[] = {5, -1}, kHuge[] = {5, 3'000'000'000}, kBreaks[] = {3, 2}, kTwo[] = {0, 2, 2},
                            kFar[] = {0, 100, 0};
  const Bad cases[] = {
      {[](auto& o, auto&) { o.pack_length = 0; }, "pack length must be from 1"},
      {[](auto& o, auto&) { o.pack_length = -4; }, "found -4"},
      {[](auto& o, auto&) { o.method = "best"; }, "there is no method 'best'; the methods are next-fit"},
      {[](auto& o, auto&) { o.rows = -1; }, "rows is -1"},
      {[](auto& o, auto&) { o.rows = 1 << 30; }, "expected a product of at most 2147483647"},
      {[](auto& o, auto&) { o.rank = 1; }, "rank must be from 0 to 0, found 1"},
      {[](auto& o, auto&) { o.ranks = 70000; }, "ranks must be from 1 to 65536"},
      {[](auto& o, auto&) { o.cut = 9; }, "cut must be from 1 to 8"},
      {[](auto& o, auto&) { o.cut = -1; }, "cut is -1; expected 0 for 8, or a number above 0"},
      {[](auto& o, auto&) { o.window = -1; }, "window is -1"},
      {[](auto& o, auto&) { o.open_packs = -2; }, "open_packs is -2; expected 0 for 16, -1 for none or"},
      {[](auto& o, auto&) { o.min_piece = 5; }, "minimum piece must be from 1 to 4"},
      {[](auto& o, auto&) { o.loss_unit = 2; }, "loss_unit is 2; expected 0 or 1"},
      {[](auto& o, auto&) { o.last_token = -1; }, "last_token is -1; expected 0 or 1"},
      {[](auto& o, auto&) { o.division = 2; }, "division is 2; expected 0 or 1"},
      {[](auto& o, auto&) { o.struct_size = 8; }, "packjit_packer_options: struct_size is 8"},
      {[](auto&, auto& d) { d.struct_size = 0; }, "packjit_documents: struct_size is 0"},
      {[](auto&, auto& d) { d.count = 0; }, "count is 0"},
      {[](auto&, auto& d) { d.lengths = nullptr; }, "lengths is NULL"},
      {[](auto&, auto& d) { d.lengths = kNegative; }, "document 1: length must be from 1 to 2147483647, found -1"},
      {[](auto&, auto& d) { d.lengths = kHuge; }, "document 1: length must be from 1 to 2147483647, found 3000000000"},
      {[](auto&, auto& d) { d.breaks = kBreaks; }, "one of breaks and break_offsets is NULL"},
      {[](auto&, auto& d) { d.breaks = kBreaks, d.break_offsets = kTwo; }, "found 2 after 3"},
      {[](auto&, auto& d) { d.breaks = kBreaks, d.break_offsets = kFar; }, "numbers 0 to 100 of all"},
  };
  for (const Bad& bad : cases) {
    const std::vector<std::int64_t> lengths = {5, 6};
    packjit_packer_options options = options_of(8);
    packjit_documents documents = documents_of(lengths);
    bad.spoil(options, documents);
    packjit_packer* packer = nullptr;
    EXPECT_EQ(packjit_packer_create(&options, &documents, &packer), PACKJIT_BAD_ARGUMENT) << bad.message;
    EXPECT_EQ(packer, nullptr);
    EXPECT_NE(std::string(packjit_last_error()).find(bad.message), std::string::npos) << packjit_last_error();
  }
  EXPECT_EQ(packjit_packer_create(nullptr, nullptr, nullptr), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(packjit_packer_next(nullptr, nullptr), PACKJIT_BAD_ARGUMENT);
  packjit_packer_release(nullptr);
}

TEST(Packer, AStructThatIsTooShortTakesNoStep) {
  const PackerHandle packer = make_packer(options_of(8), {5, 6});
  packjit_step step{};
  step.struct_size = 16;
  EXPECT_EQ(packjit_packer_next(packer.get(), &step), PACKJIT_BAD_ARGUMENT);
  EXPECT_EQ(position_of(packer).step, 0);
}

TEST(Packer, CppGivesTheSameAsSpans) {
  const std::vector<std::int64_t> lengths = {10}, breaks = {3}, offsets = {0, 1};
  auto packer = packjit::Packer::create(lengths, {.pack_length = 4, .last_token = packjit::LastToken::counts},
                                        {.breaks = breaks, .offsets = offsets});
  ASSERT_TRUE(packer) << packer.status().message();
  EXPECT_EQ(packer->info()->steps, 3);
  EXPECT_EQ(packer->statistics()->pieces, 3);
  auto start = packer->position();
  ASSERT_TRUE(start) << start.status().message();
  for (int round = 0; round < 2; ++round) {
    auto step = packer->next();
    ASSERT_TRUE(step) << step.status().message();
    EXPECT_EQ(step->sizes().tokens, 3);
    EXPECT_EQ(step->pieces().size(), 1U);
    const auto positions = step->position_indices();
    EXPECT_EQ(std::vector(positions.begin(), positions.end()), (std::vector<std::int32_t>{0, 1, 2, -1}));
    const auto cu = step->cu_seqlens();
    EXPECT_EQ(std::vector(cu.begin(), cu.end()), (std::vector<std::int64_t>{0, 3, 4}));
    const auto weights = step->loss_weights();
    EXPECT_EQ(std::vector(weights.begin(), weights.end()), (std::vector<float>{1, 1, 1, 0}));
    EXPECT_EQ(step->document_ids()[0], 0);
    EXPECT_EQ(step->document_offsets()[2], 2);
    EXPECT_EQ(step->seq_idx()[3], -1);
    EXPECT_TRUE(packer->resume(*start).ok());
  }
  const auto bad = packjit::Packer::create(lengths, {.pack_length = 0});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.status().code(), packjit::Code::bad_argument);
  const auto uneven = packjit::Packer::create(lengths, {.pack_length = 4}, {.breaks = breaks, .offsets = breaks});
  ASSERT_FALSE(uneven);
  EXPECT_NE(uneven.status().message().find("1 offsets of breaks, expected one more than the 1"), std::string::npos);
}

}  // namespace
}  // namespace packjit::testing
