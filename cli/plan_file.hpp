#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "packing/packing.hpp"

namespace packjit {

/// Version of the format that docs/plan_format.md describes. The minor version rises where fields are added.
inline constexpr int kPlanFormatVersion = 1;
inline constexpr int kPlanFormatMinorVersion = 1;

/// What a plan is a part of.
struct PlanPlace {
  std::optional<std::int64_t> epoch;  ///< nothing: the documents come in the order of the file
  std::int64_t ranks = 1, rank = 0;
};

/// A plan as JSON text, one row a line. The same plan gives the same bytes.
[[nodiscard]] std::string plan_json(const PackPlan& plan, const PlanPlace& place = {});

}  // namespace packjit
