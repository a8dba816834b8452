#pragma once
#include "math.cuh"
constexpr float MOST_FLOAT = 3.402823466e38f;  // the largest finite value

// A * log2(e), so that exp(dt * A) is one exponential of base 2. Finite, so that dt = 0 gives exp(0) whatever A is; a NaN stays.
__device__ __forceinline__ float decay_rate(float a) {
  float rate = a * LOG2_E;
  rate = rate < -MOST_FLOAT ? -MOST_FLOAT : rate;
  return rate > MOST_FLOAT ? MOST_FLOAT : rate;
}
