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

// 2^n for whole n from -127 to 127, from a sum n + ROUND_BIAS, whose last bits are n; 2^-127 becomes 0.
constexpr float ROUND_BIAS = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to a whole number
__device__ __forceinline__ float power_of_two(float biased) {
  return bits_to_float((float_to_bits(biased) << 23) + 0x3f800000u);
}

// e^-|x|, relative error below 4e-7 down to the smallest normal number, 0 below: 2^n * 2^f with n + f = -|x| * log2(e), |f| <= 1/2.
// NaN gives that for 88.
__device__ __forceinline__ float exp_minus_abs(float x) {
  constexpr float kLog2ELow = 1.925963e-8f;  // log2(e) - LOG2_E
  float a = minimum(x < 0.0f ? -x : x, 88.0f);
  float biased = fused_multiply_add(-a, LOG2_E, ROUND_BIAS);
  float f = fused_multiply_add(-a, LOG2_E, ROUND_BIAS - biased);
  f = fused_multiply_add(-a, kLog2ELow, f);
  return exp2_flush(f) * power_of_two(biased);
}

// log(1 + e) for 0 <= e <= 1, relative error below 4e-7: e times the polynomial nearest to log(1 + e) / e.
__device__ __forceinline__ float log1p_unit(float e) {
  float p = -0.008778953f;
  p = fused_multiply_add(p, e, 0.04498663f);
  p = fused_multiply_add(p, e, -0.1090229f);
  p = fused_multiply_add(p, e, 0.17847207f);
  p = fused_multiply_add(p, e, -0.24536866f);
  p = fused_multiply_add(p, e, 0.33284065f);
  p = fused_multiply_add(p, e, -0.49998179f);
  return fused_multiply_add(p * e, e, e);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): relative error below 1e-6 down to the smallest normal result (x = -87); equal
// to x above 20 in fp32.
__device__ __forceinline__ float softplus(float x, float exp_minus_abs_x) {
  return (x <= 0.0f ? 0.0f : x) + log1p_unit(exp_minus_abs_x);  // NaN stays NaN
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
