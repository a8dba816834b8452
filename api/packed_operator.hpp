#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "api/backend.hpp"
#include "api/call_plan.hpp"
#include "api/map.hpp"

namespace packjit::api {

/// One operator with its options, forward and backward. Thread-safe.
///
/// A call whose key was seen before copies its argument, fills in addresses and launches. Another one is checked and
/// planned, and compiled where no call had the same Spec and Config in the same context.
class PackedOperator {
 public:
  PackedOperator(Backend& backend, const packjit_operator_options& options);

  /// Scratch memory of so many bytes for the launches of one call on the lane, 256-byte aligned; 0 bytes may be null.
  using Workspace = std::function<void*(Lane& lane, std::size_t bytes)>;
  void run(bool backward, void* stream, const Map& map, GivenTensors tensors, const Workspace& workspace);
  /// `handed` is what Backend::to_hand_on() gave on the thread of the caller.
  void prepare(void* stream, std::int32_t directions, const packjit_shape& shape, void* handed = nullptr);
  [[nodiscard]] std::int64_t workspace_bytes(bool backward, const packjit_shape& shape);
  [[nodiscard]] packjit_tensor describe(bool backward, const packjit_shape& shape, std::string_view name) const;
  [[nodiscard]] bool is_scan() const { return packjit::is_scan(forward_.op); }
  [[nodiscard]] Backend& backend() const { return backend_; }

 private:
  [[nodiscard]] const Spec& spec(bool backward) const { return backward ? backward_ : forward_; }
  Backend& backend_;
  Spec forward_, backward_;
  PlanCache plans_[2];  // forward, backward
};

/// Throws std::invalid_argument unless it is PACKJIT_FORWARD or PACKJIT_BACKWARD.
[[nodiscard]] bool is_backward_direction(std::int32_t direction);

}  // namespace packjit::api
