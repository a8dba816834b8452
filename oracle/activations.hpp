#pragma once

#include <cmath>

namespace packjit::oracle {

/// Above this, softplus is the identity (docs/design.md section 2); it jumps there by e^-20, about 2e-9.
constexpr double kSoftplusLinearAbove = 20.0;

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

inline double silu(double x) { return x * sigmoid(x); }

/// d silu / dx = s + x * s * (1 - s) with s = sigmoid(x).
inline double silu_gradient(double x) {
  const double s = sigmoid(x);
  return s * (1.0 + x * (1.0 - s));
}

inline double softplus(double x) { return x > kSoftplusLinearAbove ? x : std::log1p(std::exp(x)); }

inline double softplus_gradient(double x) { return x > kSoftplusLinearAbove ? 1.0 : sigmoid(x); }

}  // namespace packjit::oracle
