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
// The value of `x` in lane `lane`; all 32 lanes take part.
__device__ __forceinline__ float shuffle_from(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
// The thread's lane, asked for anew, so that addresses computed from it are not kept in registers where those are few.
__device__ __forceinline__ int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
  return lane;
}
// The lanes of a warp wait for each other; writes before are seen after.
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
// Copies BYTES (4, 8 or 16, both addresses multiples of it) from global to shared memory while the thread goes on.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  uint32 shared = uint32(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES) : "memory");
  }
}
// The thread waits for all its copies; other threads see them after a barrier.
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The thread's copies since the last call become a group, even where there are none.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// The thread waits for all its groups of copies but the last GROUPS_LEFT.
template <int GROUPS_LEFT>
__device__ __forceinline__ void wait_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
}
// The launch after this one may start, where the host lets it, as soon as every block has begun.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// A launch that started early waits until the one before it has ended and its writes are seen.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
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
// |x|
__device__ __forceinline__ float absolute(float x) {
  float y;
  asm("abs.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The smaller of both, the other one where one is NaN.
__device__ __forceinline__ float minimum(float x, float y) {
  float z;
  asm("min.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
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
// A sum of products by the tensor cores: sums(16 x 8) += a(16 x 8) * b(8 x 8), factors cut to tf32 (11 significant bits).
// With lane = 4 * g + c, a lane gives a0 = a[g, c], a1 = a[g + 8, c], a2 = a[g, c + 4], a3 = a[g + 8, c + 4] and
// b0 = b[c, g], b1 = b[c + 4, g], and holds sums[g, 2c], sums[g, 2c + 1], sums[g + 8, 2c], sums[g + 8, 2c + 1].
__device__ __forceinline__ void matrix_sum(float (&sums)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(float_to_bits(a0)), "r"(float_to_bits(a1)), "r"(float_to_bits(a2)), "r"(float_to_bits(a3)),
        "r"(float_to_bits(b0)), "r"(float_to_bits(b1)));
}
// Neighbouring words of global memory by one access; the copy of a struct would be split into one access a word. The
// address must be a multiple of their size.
__device__ __forceinline__ void store_words(void* to, const uint32 (&word)[1]) { *static_cast<uint32*>(to) = word[0]; }
__device__ __forceinline__ void store_words(void* to, const uint32 (&word)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(to), "r"(word[0]), "r"(word[1]) : "memory");
}
__device__ __forceinline__ void store_words(void* to, const uint32 (&word)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
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
#if CONVERT == NATIVE && DTYPE != FP32
// Two values, rounded to nearest even, in the lower and the upper half of a word.
__device__ __forceinline__ uint32 float_to_half_pair(float low, float high) {
  uint32 y;
#if DTYPE == FP16
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#endif
  return y;
}
#endif
