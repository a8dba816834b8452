#pragma once

#include <string>

#include "packing/packing.hpp"

namespace packjit {

/// Version of the format that docs/plan_format.md describes.
inline constexpr int kPlanFormatVersion = 1;

/// A plan as JSON text, one row a line. The same plan gives the same bytes.
[[nodiscard]] std::string plan_json(const PackPlan& plan);

}  // namespace packjit
