#pragma once

#include <string>

#include "database/builtin_config.hpp"
#include "database/database.hpp"

namespace packjit::test {

inline GpuProperties test_gpu() { return {"Test GPU", "sm_90", 132, 232'448, 62'914'560, 2619}; }

/// A tuned entry as a tuner writes it: the convolution at a shape of this many tokens.
inline Entry test_entry(std::int64_t tokens = 4096, double median_ms = 0.25) {
  const Operator op = Operator::conv1d_pack_fwd;
  Entry entry{.spec = Spec(op), .config = builtin_config(Spec(op), "sm_90")};
  entry.measured = {tokens, 8, 1536, 512};
  entry.bucket = bucket_of(op, entry.measured);
  entry.time = {median_ms, median_ms / 2, median_ms * 2, 50};
  entry.built_in = {0.5, 0.25, 1, 50};
  entry.limit_share = 0.75;
  entry.lowest_mhz = 1905;
  entry.highest_mhz = 1980;
  entry.tried = 120;
  entry.check = {"fp64 oracle", 0.125};
  entry.gpu = test_gpu();
  entry.nvrtc = "12.9";
  entry.driver = "13.0";
  entry.source_digest = "0123456789abcdef0123456789abcdef";
  entry.date = "2026-03-14";
  return entry;
}

/// Entries of which no two share their Spec and bucket, for numbers below 800.
inline Entry numbered_entry(int number) {
  constexpr int kBuckets = 17;
  constexpr std::int64_t kDims[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192};
  Entry entry = test_entry();
  const std::vector<Bucket> buckets = buckets_to_tune(entry.spec.op, kDims[number / kBuckets % 8]);
  entry.spec.values.set("conv_width", 1 + number / (kBuckets * 8));
  entry.bucket = buckets.at(static_cast<std::size_t>(number % kBuckets));
  entry.measured = representative(entry.spec.op, entry.bucket);
  entry.tried = number;
  return entry;
}

inline FailedCandidate test_failure(int block = 64) {
  const Operator op = Operator::conv1d_pack_fwd;
  FailedCandidate failed{.spec = Spec(op), .config = builtin_config(Spec(op), "sm_90")};
  failed.config.values.set("block", block);
  failed.measured = {4096, 8, 1536, 512};
  failed.reason = "out: 3 of 4096 values differ";
  failed.gpu = test_gpu();
  failed.nvrtc = "12.9";
  failed.driver = "13.0";
  failed.source_digest = "fedcba9876543210fedcba9876543210";
  return failed;
}

}  // namespace packjit::test
