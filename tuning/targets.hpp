#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tuning/operator_choices.hpp"
#include "tuning/trial.hpp"

namespace packjit {

/// A batch of one row without padding that is as the workload says: so many tokens in so many sequences, one of them
/// `longest`, the others log-normal, of 1 to `longest` tokens. The same on every call. Throws std::invalid_argument
/// where there is no such batch.
[[nodiscard]] BatchShape batch_of(const Workload& work);

/// What a batch of that shape is for a kernel of `dim` channels.
[[nodiscard]] Workload workload_of(const BatchShape& batch, std::int64_t dim);

/// The Specs of an operator that training uses: the default one, and for a scan the one with checkpoints.
[[nodiscard]] std::vector<Spec> specs_to_tune(Operator op, const OperatorChoices& choices);

/// buckets_to_tune() of each operator and dim, for each of its Specs, with the batch of the bucket's representative().
/// What is used most comes first: 32,768 tokens, then 4,096, of documents before other mixes. `choices.dim` is not
/// read.
[[nodiscard]] std::vector<TuningTarget> targets_of_buckets(std::span<const Operator> ops,
                                                           std::span<const std::int64_t> dims,
                                                           const OperatorChoices& choices);

/// A real mix: the bucket of each operator, Spec and dim that the batch falls into, to be measured with the batch.
[[nodiscard]] std::vector<TuningTarget> targets_of_batch(const BatchShape& batch, std::span<const Operator> ops,
                                                         std::span<const std::int64_t> dims,
                                                         const OperatorChoices& choices);

}  // namespace packjit
