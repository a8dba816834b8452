#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>

#include "api/packed_operator.hpp"

namespace packjit::api {

/// The operators of a device whose options follow from the tensors of their calls, each made once. They stay until the
/// device goes. Thread-safe.
class OperatorsByTensors {
 public:
  explicit OperatorsByTensors(Backend& backend) : backend_(backend) {}
  /// `fused`: softplus of the scan, SiLU of the convolution. Throws what specs_of() does.
  [[nodiscard]] PackedOperator& find(Operator op, bool fused, GivenTensors tensors);

 private:
  /// All of the tensors that options depend on.
  struct Kind {
    Operator op;
    bool fused;
    std::uint32_t present;  ///< bits in the order of tensor_rules(op)
    std::int32_t dtype, parameter_dtype;
    std::int64_t size;  ///< d_state or conv_width
    std::int32_t rank_B, rank_C;
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  static Kind kind_of(Operator op, bool fused, GivenTensors tensors);

  Backend& backend_;
  std::shared_mutex mutex_;
  std::map<Kind, std::unique_ptr<PackedOperator>> operators_;
};

}  // namespace packjit::api
