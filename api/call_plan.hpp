#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "api/tensors.hpp"
#include "runtime/kernel_argument.hpp"

namespace packjit::api {

/// All that the launches of a call depend on but addresses: calls with equal keys differ in addresses only. Takes no
/// memory.
class CallKey {
 public:
  /// Checks the structs of the tensors on the way. `context` is Lane::context().
  CallKey(Operator op, GivenTensors tensors, const MapShape& map, std::int64_t max_sequences, std::int64_t max_seqlen,
          std::uint64_t context);
  friend bool operator==(const CallKey& a, const CallKey& b);

 private:
  static constexpr std::size_t kWordsOfTensor = 9;  // dtype, rank and alignment; sizes; strides
  static constexpr std::size_t kWordsOfMap = 9;
  void add(std::uint64_t word);
  std::array<std::uint64_t, kMostTensors * kWordsOfTensor + kWordsOfMap> words_;
  std::size_t count_ = 0;
  std::uint64_t hash_;
};

/// What a call launches, found once. Immutable.
struct CallPlan {
  CallKey key;
  CheckedCall call;
  ArgumentForm argument;
  std::shared_ptr<const Module> module;
};

/// The plans of one operator's last calls. Thread-safe; who finds one waits only while another is put in.
class PlanCache {
 public:
  [[nodiscard]] std::shared_ptr<const CallPlan> find(const CallKey& key) const;
  void add(std::shared_ptr<const CallPlan> plan);

 private:
  static constexpr std::size_t kMost = 64;
  mutable std::shared_mutex mutex_;
  std::vector<std::shared_ptr<const CallPlan>> plans_;
  std::size_t oldest_ = 0;
};

}  // namespace packjit::api
