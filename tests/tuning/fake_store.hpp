#pragma once

#include <algorithm>
#include <vector>

#include "tuning/tuning_run.hpp"

namespace packjit::test {

class MemoryStore : public TuningStore {
 public:
  using TuningStore::add;

  [[nodiscard]] std::optional<Entry> best(const Spec& spec, const Bucket& bucket, const GpuProperties&) override {
    for (const Entry& entry : entries) {
      if (entry.spec == spec && entry.bucket == bucket) return entry;
    }
    return {};
  }
  [[nodiscard]] bool failed(const FailedCandidate& candidate) override {
    return std::ranges::any_of(failures, [&](const FailedCandidate& known) {
      return known.spec == candidate.spec && known.config == candidate.config && known.nvrtc == candidate.nvrtc &&
             known.driver == candidate.driver && known.source_digest == candidate.source_digest;
    });
  }
  void add(const Entry& entry) override {
    std::erase_if(entries, [&](const Entry& old) { return old.spec == entry.spec && old.bucket == entry.bucket; });
    entries.push_back(entry);
  }
  void add(const FailedCandidate& failed) override { failures.push_back(failed); }

  std::vector<Entry> entries;
  std::vector<FailedCandidate> failures;
};

}  // namespace packjit::test
