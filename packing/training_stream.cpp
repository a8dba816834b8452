#include "packing/training_stream.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "packing/permutation.hpp"

namespace packjit {
namespace {

class Fingerprint {
 public:
  void add(std::int64_t value) { state_ = SplitMix64(state_ ^ static_cast<std::uint64_t>(value)).next(); }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

std::uint64_t fingerprint_of(std::span<const Document> documents, const PackMethod& method, const PackOptions& options,
                             std::int64_t ranks, RankDivision division) {
  Fingerprint fingerprint;
  for (const char c : method.name) fingerprint.add(c);
  for (const std::int64_t value :
       {options.pack_length, options.cut, options.cut_slack, options.min_piece, options.rows_per_call, options.window,
        options.open_packs, static_cast<std::int64_t>(options.seed), ranks}) {
    fingerprint.add(value);
  }
  // Only the other ones, so that positions that were kept before there were any are still good.
  if (division != RankDivision::balanced) fingerprint.add(static_cast<std::int64_t>(division));
  for (const Document& document : documents) {
    fingerprint.add(document.length);
    for (const std::int64_t point : document.breaks) fingerprint.add(-point);
  }
  return fingerprint.value();
}

/// Far beyond what anyone trains, and far enough from the largest number for the epochs that follow.
constexpr std::int64_t kLastEpoch = std::int64_t{1} << 53;

}  // namespace

std::vector<std::int64_t> arrival_order(std::int64_t documents, std::uint64_t seed, std::int64_t epoch) {
  const Permutation permutation(static_cast<std::uint64_t>(documents), seed, static_cast<std::uint64_t>(epoch));
  std::vector<std::int64_t> order(static_cast<std::size_t>(documents));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(permutation(i));
  return order;
}

std::vector<Document> in_order(std::span<const Document> documents, const std::vector<std::int64_t>& order) {
  std::vector<Document> ordered;
  ordered.reserve(order.size());
  for (const std::int64_t index : order) ordered.push_back(documents[static_cast<std::size_t>(index)]);
  return ordered;
}

PackOptions options_of_epoch(const PackOptions& options, std::int64_t epoch) {
  PackOptions result = options;
  result.seed = SplitMix64(options.seed ^ SplitMix64(static_cast<std::uint64_t>(epoch)).next()).next();
  return result;
}

TrainingStream::TrainingStream(std::vector<Document> documents, const PackMethod& method, const PackOptions& options,
                               std::int64_t ranks, std::int64_t rank, RankDivision division)
    : documents_(std::move(documents)),
      method_(&method),
      options_(checked_options(options)),
      ranks_(ranks),
      rank_(rank),
      division_(division) {
  if (rank < 0 || rank >= ranks) {
    throw std::invalid_argument("packing: rank must be from 0 to " + std::to_string(ranks - 1) + ", found " +
                                std::to_string(rank));
  }
  // What is wrong with a document is said by its number here; an epoch's plan knows its place of arrival only.
  (void)begin_plan(method.name, documents_, options_);
  begin(planned(0));
  position_.fingerprint = fingerprint_of(documents_, method, options_, ranks, division);
}

const Call& TrainingStream::upcoming() {
  if (position_.step == steps()) begin(planned(position_.epoch + 1));
  return epoch_.calls[static_cast<std::size_t>(position_.step)];
}

const Call& TrainingStream::next() {
  const Call& call = upcoming();
  ++position_.step;
  return call;
}

std::span<const StateHandover> TrainingStream::upcoming_handovers() {
  (void)upcoming();
  const auto first =
      std::lower_bound(epoch_.handovers.begin(), epoch_.handovers.end(), position_.step,
                       [](const StateHandover& handover, std::int64_t step) { return handover.to.call < step; });
  const auto last = std::find_if(first, epoch_.handovers.end(),
                                 [&](const StateHandover& handover) { return handover.to.call != position_.step; });
  return {first, last};
}

void TrainingStream::resume(const StreamPosition& position) {
  if (position.fingerprint != position_.fingerprint) {
    throw std::invalid_argument(
        "packing: cannot resume: the position belongs to other documents, options, division or another number of "
        "ranks; start "
        "the epoch anew, or give those it was made with");
  }
  if (position.epoch < 0 || position.epoch > kLastEpoch) {
    throw std::invalid_argument("packing: cannot resume: expected an epoch from 0 to " + std::to_string(kLastEpoch) +
                                ", found " + std::to_string(position.epoch));
  }
  Epoch epoch = planned(position.epoch);
  const auto steps = static_cast<std::int64_t>(epoch.calls.size());
  if (position.step < 0 || position.step > steps) {
    throw std::invalid_argument("packing: cannot resume: expected a step from 0 to " + std::to_string(steps) +
                                ", found " + std::to_string(position.step));
  }
  begin(std::move(epoch));
  position_.step = position.step;
}

EpochStatistics TrainingStream::statistics() const {
  const auto order = arrival_order(static_cast<std::int64_t>(documents_.size()), options_.seed, position_.epoch);
  const std::vector<Document> arriving = in_order(documents_, order);
  const std::vector<PackPlan> plans =
      plan_ranks(*method_, arriving, options_of_epoch(options_, position_.epoch), ranks_, division_);
  return {statistics_of(joined(plans), arriving), balance_of(plans)};
}

TrainingStream::Epoch TrainingStream::planned(std::int64_t epoch) const {
  const auto order = arrival_order(static_cast<std::int64_t>(documents_.size()), options_.seed, epoch);
  std::vector<PackPlan> plans =
      plan_ranks(*method_, in_order(documents_, order), options_of_epoch(options_, epoch), ranks_, division_);
  PackPlan& mine = plans[static_cast<std::size_t>(rank_)];
  rename_documents(mine, order);
  std::vector<StateHandover> handovers = state_handovers(mine, SlotNumbering::position_indices);
  return {epoch, std::move(mine.calls), std::move(handovers)};
}

void TrainingStream::begin(Epoch epoch) {
  epoch_ = std::move(epoch);
  position_.epoch = epoch_.number;
  position_.step = 0;
}

}  // namespace packjit
