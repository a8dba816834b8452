#include "checking/successive_calls.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checking/inputs.hpp"
#include "packing/packing.hpp"
#include "runtime/host/host_device.hpp"

namespace packjit::checking {
namespace {

/// Three documents; the first is cut in pieces of 9, 6, 9 and 7 tokens, by its breaks.
const std::vector<Document> kDocuments = {{31, {9, 15}}, {5, {}}, {8, {}}};

PackPlan plan_of(std::int64_t pack_length, std::int64_t cut, std::int64_t rows) {
  return plan_local_greedy(kDocuments, {.pack_length = pack_length, .cut = cut, .rows_per_call = rows});
}

Case uncut(Operator op, Dtype dtype) {
  Case c;
  c.name = "uncut";
  c.op = op;
  c.dtype = dtype;
  c.dim = 3;
  c.d_state = 4;
  c.initial_states = c.final_states = true;
  c.rows = {row_of({31, 5, 8})};
  return c;
}

TEST(SuccessiveCalls, TheCallsAreThoseOfThePlan) {
  const PackPlan plan = plan_of(12, 9, 1);
  const SuccessiveCalls calls = calls_of(uncut(Operator::ssm_pack_fwd, Dtype::fp32), plan);
  ASSERT_EQ(calls.parts.size(), plan.calls.size());
  ASSERT_EQ(calls.handovers.size(), 3U);
  std::vector<std::int64_t> of_the_first;
  for (const Part& part : calls.parts) {
    EXPECT_EQ(part.check_case.seqlen(), 12);
    for (const Piece& piece : part.pieces) {
      if (piece.slot == 0) of_the_first.push_back(piece.length);
    }
  }
  EXPECT_EQ(of_the_first, (std::vector<std::int64_t>{9, 6, 9, 7}));
}

TEST(SuccessiveCalls, PiecesEqualTheUncutRunForwardAndBackward) {
  const auto device = open_host_device({});
  const PackPlan plan = plan_of(12, 9, 2);
  for (const Operator op : kOperators) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      const Case whole = uncut(op, dtype);
      const SuccessiveCalls calls = calls_of(whole, plan);
      const CaseRun run = first_run(*device, whole);
      const Reference reference = compute_reference(whole, run.inputs);
      const std::vector<Result> results = check_successive_calls(*device, run, reference, calls);
      // Each output of the operator under two Configs.
      EXPECT_EQ(results.size(), 2 * reference.outputs.size());
      for (const Result& result : results) EXPECT_TRUE(result.pass()) << describe(result);
      const std::vector<PieceBits> bits = piece_bits(*device, run, calls);
      for (const PieceBits& of_tensor : bits) {
        EXPECT_EQ(of_tensor.pieces, 6) << of_tensor.tensor;  // 4 of the first document, 2 that are whole
        EXPECT_EQ(of_tensor.wrong, 0) << name_of(op) << " " << of_tensor.tensor << " " << of_tensor.config;
        const std::int64_t must = of_tensor.config != "segments" ? 6 : is_backward(op) ? 2 : 3;
        EXPECT_EQ(of_tensor.must_be_equal, must) << name_of(op) << " " << of_tensor.config;
      }
      for (const Result& result : results_of(run, bits)) EXPECT_TRUE(result.pass()) << describe(result);
    }
  }
}

/// The third segment begins inside the second piece, whose segments begin elsewhere.
TEST(SuccessiveCalls, InSegmentsPiecesThatBeginInsideOneAreWithinTheBounds) {
  const auto device = open_host_device({});
  const std::vector<Document> documents = {{2500, {}}};
  const PackPlan plan = plan_local_greedy(documents, {.pack_length = 1500});
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    Case whole = uncut(op, Dtype::fp32);
    whole.dim = 1;
    whole.d_state = 1;
    whole.rows = {row_of({2500})};
    const SuccessiveCalls calls = calls_of(whole, plan);
    const CaseRun run = first_run(*device, whole);
    for (const Result& result : check_successive_calls(*device, run, compute_reference(whole, run.inputs), calls)) {
      EXPECT_TRUE(result.pass()) << describe(result);
    }
    for (const PieceBits& bits : piece_bits(*device, run, calls)) {
      EXPECT_EQ(bits.pieces, 2);
      EXPECT_EQ(bits.wrong, 0) << bits.tensor << " " << bits.config;
      EXPECT_EQ(bits.must_be_equal, bits.config == "built-in" ? 2 : is_backward(op) ? 0 : 1);
    }
  }
}

TEST(SuccessiveCalls, AStateThatIsNotHandedOverIsFound) {
  const auto device = open_host_device({});
  const PackPlan plan = plan_of(12, 9, 2);
  for (const Operator op : kOperators) {
    const Case whole = uncut(op, Dtype::fp32);
    const CaseRun run = first_run(*device, whole);
    const Reference reference = compute_reference(whole, run.inputs);
    SuccessiveCalls calls = calls_of(whole, plan);
    calls.handovers.erase(calls.handovers.begin() + 1);
    std::set<std::string> wrong;
    for (const Result& result : check_successive_calls(*device, run, reference, calls)) {
      if (!result.pass()) wrong.insert(result.tensor);
    }
    EXPECT_TRUE(wrong.contains(op == Operator::conv1d_pack_fwd || op == Operator::ssm_pack_fwd ? "out"
                               : op == Operator::conv1d_pack_bwd                               ? "dx"
                                                                                               : "du"))
        << name_of(op);
    const std::vector<PieceBits> bits = piece_bits(*device, run, calls);
    EXPECT_TRUE(std::ranges::any_of(bits, [](const PieceBits& b) { return b.wrong > 0; })) << name_of(op);
  }
}

TEST(SuccessiveCalls, AStateFromAnotherSlotIsFound) {
  const auto device = open_host_device({});
  // Two documents that are cut, side by side: their states are exchanged.
  const std::vector<Document> documents = {{10, {}}, {10, {}}};
  const PackPlan plan = plan_local_greedy(documents, {.pack_length = 6, .rows_per_call = 2});
  Case whole = uncut(Operator::ssm_pack_bwd, Dtype::fp32);
  whole.rows = {row_of({10, 10})};
  const CaseRun run = first_run(*device, whole);
  const Reference reference = compute_reference(whole, run.inputs);
  SuccessiveCalls calls = calls_of(whole, plan);
  ASSERT_EQ(calls.handovers.size(), 2U);
  const auto all_pass = [&] {
    const std::vector<Result> results = check_successive_calls(*device, run, reference, calls);
    return std::ranges::all_of(results, [](const Result& result) { return result.pass(); });
  };
  EXPECT_TRUE(all_pass());
  std::swap(calls.handovers[0].from, calls.handovers[1].from);
  EXPECT_FALSE(all_pass());
}

}  // namespace
}  // namespace packjit::checking
