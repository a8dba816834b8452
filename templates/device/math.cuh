#pragma once
#include "primitives.cuh"
constexpr float LOG2_E = 1.4426950408889634f;

// A running sum and what rounding has taken from it so far, so that the error does not grow with the number of terms:
// y = x - error, s = sum + y, error = (s - sum) - y.
struct CompensatedSum {
  float sum, error;
  __device__ __forceinline__ void add(float x) {
    float y = x - error;
    float s = sum + y;
    error = (s - sum) - y;
    sum = s;
  }
};

// e^-|x| as an exponential, times 1 + what rounding has taken from its argument: with p = -|x| * log2(e), rounded,
// e^-|x| = 2^p * e^r and r = -|x| - p * ln(2). Relative error below 4e-7 down to the smallest normal number, 0 below. NaN gives
// that for 88.
__device__ __forceinline__ float exp_minus_abs(float x) {
  constexpr float LN_2_HIGH = 0.6931471824645996f, LN_2_LOW = -1.9046543e-9f;  // together ln(2)
  float a = minimum(absolute(x), 88.0f), p = a * -LOG2_E;
  float rest = fused_multiply_add(p, -LN_2_LOW, fused_multiply_add(p, -LN_2_HIGH, -a));
  float e = exp2_flush(p);
  return fused_multiply_add(e, rest, e);
}

// log(1 + e) / e for 0 <= e <= 1, relative error below 4e-7: the nearest polynomial.
__device__ __forceinline__ float log1p_quotient(float e) {
  float p = -0.008778953f;
  p = fused_multiply_add(p, e, 0.04498663f);
  p = fused_multiply_add(p, e, -0.1090229f);
  p = fused_multiply_add(p, e, 0.17847207f);
  p = fused_multiply_add(p, e, -0.24536866f);
  p = fused_multiply_add(p, e, 0.33284065f);
  p = fused_multiply_add(p, e, -0.49998179f);
  return fused_multiply_add(p, e, 1.0f);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): relative error below 1e-6 down to the smallest normal result (x = -87); equal
// to x above 20 in fp32.
__device__ __forceinline__ float softplus(float x, float exp_minus_abs_x) {
  float above_zero = x <= 0.0f ? 0.0f : x;  // NaN stays NaN
  return fused_multiply_add(log1p_quotient(exp_minus_abs_x), exp_minus_abs_x, above_zero);
}
__device__ __forceinline__ float softplus(float x) { return softplus(x, exp_minus_abs(x)); }

// 1 / (1 + e^-x), with e^-x by one exponential: relative error about 1e-7 * (2 + |x|).
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2_flush(-LOG2_E * x)); }
// x * sigmoid(x)
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
// d silu / dx = s * (1 + x * (1 - s)) = s + s * (x - x * s), s = sigmoid(x)
__device__ __forceinline__ float silu_derivative(float x, float s) {
  return fused_multiply_add(s, fused_multiply_add(-x, s, x), s);
}
