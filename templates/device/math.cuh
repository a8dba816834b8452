#pragma once
#include "primitives.cuh"
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

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

// e^-|x|, relative error below 4e-7 down to the smallest normal number. A product rounded to 24 bits would lose one bit for
// each bit of |x|, so what the rounding dropped is multiplied in. NaN stays NaN.
__device__ __forceinline__ float exp_minus_abs(float x) {
  constexpr float kLog2ELow = 1.925963e-8f;  // log2(e) - LOG2_E
  float a = x < 0.0f ? -x : x;
  a = a > 200.0f ? 200.0f : a;
  float high = a * LOG2_E;
  float low = fused_multiply_add(a, LOG2_E, -high) + a * kLog2ELow;
  float power = exp2_full(-high);
  return fused_multiply_add(-power * LN_2, low, power);
}

// log(1 + e) for 0 <= e <= 1, relative error below 3e-7: 2 atanh(s), s = e / (2 + e) <= 1/3, by its series.
__device__ __forceinline__ float log1p_unit(float e) {
  float s = e * reciprocal(2.0f + e);
  float s2 = s * s;
  float sum = 1.0f / 15.0f;
  sum = fused_multiply_add(sum, s2, 1.0f / 13.0f);
  sum = fused_multiply_add(sum, s2, 1.0f / 11.0f);
  sum = fused_multiply_add(sum, s2, 1.0f / 9.0f);
  sum = fused_multiply_add(sum, s2, 1.0f / 7.0f);
  sum = fused_multiply_add(sum, s2, 1.0f / 5.0f);
  sum = fused_multiply_add(sum, s2, 1.0f / 3.0f);
  return fused_multiply_add(2.0f * s * s2, sum, 2.0f * s);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): relative error below 1e-6 down to the smallest normal result (x = -87); equal
// to x above 20 in fp32.
__device__ __forceinline__ float softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + log1p_unit(exp_minus_abs(x));
}

// The derivative of softplus where its value is `y`: 1 / (1 + e^-x) = 1 - e^-y, relative error below 2e-6. Its series where the
// difference would cancel.
__device__ __forceinline__ float softplus_derivative(float y) {
  float series = fused_multiply_add(y, -1.0f / 6.0f, 1.0f);
  series = fused_multiply_add(-1.0f / 5.0f * y, series, 1.0f);
  series = fused_multiply_add(-1.0f / 4.0f * y, series, 1.0f);
  series = fused_multiply_add(-1.0f / 3.0f * y, series, 1.0f);
  series = fused_multiply_add(-1.0f / 2.0f * y, series, 1.0f);
  return y < 0.25f ? y * series : 1.0f - exp2_flush(-LOG2_E * y);
}

// 1 / (1 + e^-x), with e^-x by one exponential: relative error about 1e-7 * (2 + |x|).
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2_flush(-LOG2_E * x)); }
// x * sigmoid(x)
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
// d silu / dx = s * (1 + x * (1 - s)), s = sigmoid(x)
__device__ __forceinline__ float silu_derivative(float x, float s) {
  return s * fused_multiply_add(x, 1.0f - s, 1.0f);
}
