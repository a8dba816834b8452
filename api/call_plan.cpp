#include "api/call_plan.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace packjit::api {

// words_ is left as it is beyond count_: it is long, and every call makes a key.
CallKey::CallKey(Operator op, GivenTensors tensors, const MapShape& map, std::int64_t max_sequences,
                 std::int64_t max_seqlen, std::uint64_t context) {
  constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;  // of FNV-1a, taken a word at a time
  hash_ = kHashStart;
  if (tensors.size() > kMostTensors) throw std::logic_error("an operator has more tensors than a key has room for");
  const std::span<const TensorRule> rules = tensor_rules(op);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const packjit_tensor* tensor = tensors[i];
    if (tensor == nullptr) {
      add(0);
      continue;
    }
    check_tensor(tensor, rules[i].name);
    constexpr std::uintptr_t kLongestAlignment = 16;  // of an access, and of checkpoints
    const auto past = reinterpret_cast<std::uintptr_t>(tensor->data) % kLongestAlignment;
    add(static_cast<std::uint64_t>(tensor->dtype) | static_cast<std::uint64_t>(tensor->rank) << 8 |
        std::uint64_t{past} << 16);
    for (std::int32_t d = 0; d < tensor->rank; ++d) {
      add(static_cast<std::uint64_t>(tensor->shape[d]));
      add(static_cast<std::uint64_t>(tensor->stride[d]));
    }
  }
  add(static_cast<std::uint64_t>(map.storage));
  for (const std::int64_t value :
       {map.batch, map.seqlen, map.n_sequences, map.items, map.segments, max_sequences, max_seqlen}) {
    add(static_cast<std::uint64_t>(value));
  }
  add(context);
}

void CallKey::add(std::uint64_t word) {
  constexpr std::uint64_t kHashFactor = 0x100000001b3ULL;
  words_[count_++] = word;
  hash_ = (hash_ ^ word) * kHashFactor;
}

bool operator==(const CallKey& a, const CallKey& b) {
  return a.hash_ == b.hash_ && a.count_ == b.count_ &&
         std::equal(a.words_.begin(), a.words_.begin() + static_cast<std::ptrdiff_t>(a.count_), b.words_.begin());
}

std::shared_ptr<const CallPlan> PlanCache::find(const CallKey& key) const {
  const std::shared_lock lock(mutex_);
  const auto found = std::ranges::find_if(plans_, [&](const auto& plan) { return plan->key == key; });
  return found == plans_.end() ? nullptr : *found;
}

void PlanCache::add(std::shared_ptr<const CallPlan> plan) {
  const std::unique_lock lock(mutex_);
  if (plans_.size() < kMost) {
    plans_.push_back(std::move(plan));
    return;
  }
  std::swap(plans_[oldest_], plan);
  oldest_ = (oldest_ + 1) % kMost;
}

}  // namespace packjit::api
