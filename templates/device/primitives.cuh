#pragma once
#include "parameters.cuh"
// The primitives: everything that is not plain C++. On a GPU each is an instruction or two.
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;

// Dynamic shared memory of the block, 16-byte aligned.
__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(16) char shared_bytes[];
  return shared_bytes;
}
// All threads of the block wait for each other; writes before are seen after.
__device__ __forceinline__ void sync_block() { __syncthreads(); }
// The value of `x` in the lane whose number differs by `mask`; all 32 lanes take part.
__device__ __forceinline__ float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
// 2^x, relative error 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_flush(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x, relative error 2^-22, subnormal results kept.
__device__ __forceinline__ float exp2_full(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1/x, relative error 2^-23.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// a * b + c, rounded once.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) {
  float y;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
// Zero bits above the highest one; 32 for 0.
__device__ __forceinline__ int leading_zeros(uint32 x) { return __clz(int(x)); }
__device__ __forceinline__ float bits_to_float(uint32 x) {
  float y;
  asm("mov.b32 %0, %1;" : "=f"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32 float_to_bits(float x) {
  uint32 y;
  asm("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#if DTYPE == FP16
__device__ __forceinline__ float fp16_to_float(uint16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ uint16 float_to_fp16(float x) {
  uint16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif
#if DTYPE == BF16 && CONVERT == NATIVE
__device__ __forceinline__ uint16 float_to_bf16(float x) {
  uint16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif
