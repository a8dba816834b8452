#pragma once
#include "math.cuh"
__device__ __forceinline__ float step_size(float biased) {
#if HAS_SOFTPLUS
  return softplus(biased);
#else
  return biased;
#endif
}

struct StepSize {
  float dt, derivative;  // by delta
};
__device__ __forceinline__ StepSize step_size_and_derivative(float biased) {
#if HAS_SOFTPLUS
  float e = exp_minus_abs(biased), sigmoid_of_abs = reciprocal(1.0f + e);
  return {softplus(biased, e), biased > 0.0f ? sigmoid_of_abs : e * sigmoid_of_abs};
#else
  return {biased, 1.0f};
#endif
}
