#pragma once
#include "decay_rate.cuh"
#include "math.cuh"
// A state of the scan, and A, B and C, which are numbers of the same kind: real, or complex with complex A. Then y sums
// 2 * Re(C * h), as a state stands for itself and its conjugate, and gradients are those of the real and the imaginary part:
// dL/d(re) + i * dL/d(im), as PyTorch has them.
struct State {
  float re;
#if HAS_COMPLEX_A
  float im;
#endif
};
constexpr int PARTS = int(sizeof(State) / sizeof(float));  // floats of a state, and y's factor

// a * b + c
__device__ __forceinline__ State multiply_add(State a, State b, State c) {
  c.re = fused_multiply_add(a.re, b.re, c.re);
#if HAS_COMPLEX_A
  c.re = fused_multiply_add(-a.im, b.im, c.re);
  c.im = fused_multiply_add(a.re, b.im, fused_multiply_add(a.im, b.re, c.im));
#endif
  return c;
}
// x * b + c
__device__ __forceinline__ State scale_add(float x, State b, State c) {
  c.re = fused_multiply_add(x, b.re, c.re);
#if HAS_COMPLEX_A
  c.im = fused_multiply_add(x, b.im, c.im);
#endif
  return c;
}
__device__ __forceinline__ State conjugate(State a) {
#if HAS_COMPLEX_A
  a.im = -a.im;
#endif
  return a;
}
// Re(a * b) + x
__device__ __forceinline__ float add_real_product(State a, State b, float x) {
  x = fused_multiply_add(a.re, b.re, x);
#if HAS_COMPLEX_A
  x = fused_multiply_add(-a.im, b.im, x);
#endif
  return x;
}

// States in memory, real part first. No alignment but a float's.
__device__ __forceinline__ State load_state(const float* from) {
  State a;
  a.re = from[0];
#if HAS_COMPLEX_A
  a.im = from[1];
#endif
  return a;
}
__device__ __forceinline__ void store_state(float* to, State a) {
  to[0] = a.re;
#if HAS_COMPLEX_A
  to[1] = a.im;
#endif
}

#if HAS_COMPLEX_A
// sin(x) and cos(x) with errors below 1.1e-7 of 1 for |x| up to 2e6, and 1e-6 up to 6e6: x = n * pi/2 + r with |r| near pi/4 at most,
// and the polynomials nearest to sin(r) and cos(r). Rounding n to a whole number leaves its last bits in those of the sum.
__device__ __forceinline__ State cos_and_sin(float x) {
  constexpr float TWO_BY_PI = 0.6366197723675814f;
  constexpr float ROUND_BIAS = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to a whole number
  constexpr float HALF_PI = 1.5707963705062866f, HALF_PI_LOW = -4.371138828673793e-8f;  // together pi/2
  float biased = fused_multiply_add(x, TWO_BY_PI, ROUND_BIAS), n = biased - ROUND_BIAS;
  float r = fused_multiply_add(-n, HALF_PI_LOW, fused_multiply_add(-n, HALF_PI, x)), square = r * r;
  float sine = fused_multiply_add(square, -0.000195173f, 0.008332178f);
  sine = fused_multiply_add(fused_multiply_add(sine, square, -0.16666655f) * square, r, r);
  float cosine = fused_multiply_add(square, 2.4438452e-5f, -0.0013887368f);
  cosine = fused_multiply_add(fused_multiply_add(cosine, square, 0.041666646f), square, -0.5f);
  cosine = fused_multiply_add(cosine, square, 1.0f);
  uint32 quarter = float_to_bits(biased) & 3u;
  if (quarter & 1u) {
    float other = sine;
    sine = cosine;
    cosine = other;
  }
  return {quarter == 1u || quarter == 2u ? -cosine : cosine, quarter >= 2u ? -sine : sine};
}
#endif

// A as decays are computed from it: the real part in units of log2(e).
__device__ __forceinline__ State decay_rate(State a) {
  a.re = decay_rate(a.re);
  return a;
}
// exp(dt * A)
__device__ __forceinline__ State decay(float dt, State rate) {
  float size = exp2_flush(dt * rate.re);
#if HAS_COMPLEX_A
  State turn = cos_and_sin(dt * rate.im);
  return {size * turn.re, size * turn.im};
#else
  return {size};
#endif
}
