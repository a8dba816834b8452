#pragma once
// The primitives on a CPU: one fiber a thread. The program that loads this code owns the fibers and sets
// `packjit_thread` whenever it switches to one. For each kernel NAME the generator adds packjit_enter_NAME(), which
// calls it with the struct at `packjit_thread->argument`.
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;

struct HostIndex {
  unsigned x, y, z;
};
// What a kernel's thread can see and do. Layout shared with runtime/host/host_thread.hpp.
struct HostThread {
  HostIndex thread, block, block_size, grid_size;
  const void* argument;                                         // the kernel's parameter struct
  char* shared;                                                 // dynamic shared memory of the block
  void (*sync_block)(HostThread*);                              // returns once every thread of the block has called it
  unsigned (*exchange)(HostThread*, unsigned value, int lane);  // warp collective: the value given by another lane
  // Warp collective of all 32 lanes: what they give, (32, 6), to be read before the next one.
  const unsigned* (*gather)(HostThread*, const unsigned (&values)[6]);
  void (*copy_async)(HostThread*, void* to, const void* from, unsigned bytes);  // lands now or when waited for
  void (*wait_copies)(HostThread*);
  void (*commit_copies)(HostThread*);
  void (*wait_copies_but)(HostThread*, unsigned groups_left);
};
extern "C" {
thread_local HostThread* packjit_thread = nullptr;
void packjit_set_thread(HostThread* thread) { packjit_thread = thread; }
// Lets the loader refuse code that was printed for another layout.
unsigned packjit_host_layout() { return sizeof(HostThread); }
}
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (packjit_thread->thread)
#define blockIdx (packjit_thread->block)
#define blockDim (packjit_thread->block_size)
#define gridDim (packjit_thread->grid_size)

inline char* shared_memory() { return packjit_thread->shared; }
inline void sync_block() { packjit_thread->sync_block(packjit_thread); }
inline int leading_zeros(uint32 x) { return x == 0 ? 32 : __builtin_clz(x); }
inline float bits_to_float(uint32 x) { return __builtin_bit_cast(float, x); }
inline uint32 float_to_bits(float x) { return __builtin_bit_cast(uint32, x); }
inline float shuffle_from(float x, int lane) {
  return bits_to_float(packjit_thread->exchange(packjit_thread, float_to_bits(x), lane));
}
inline float shuffle_xor(float x, int mask) { return shuffle_from(x, int(threadIdx.x & 31) ^ mask); }
inline int fresh_lane() { return int(threadIdx.x & 31); }
inline void sync_warp() { packjit_thread->exchange(packjit_thread, 0, int(threadIdx.x & 31)); }
template <int BYTES>
inline void copy_async(void* to, const void* from) {
  packjit_thread->copy_async(packjit_thread, to, from, BYTES);
}
inline void wait_copies() { packjit_thread->wait_copies(packjit_thread); }
inline void commit_copies() { packjit_thread->commit_copies(packjit_thread); }
template <int GROUPS_LEFT>
inline void wait_copies_but() {
  packjit_thread->wait_copies_but(packjit_thread, GROUPS_LEFT);
}
inline void let_next_start() {}
inline void wait_for_previous() {}
inline float tf32(uint32 bits) { return bits_to_float(bits & 0xffffe000u); }
inline void matrix_sum(float (&sums)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  const unsigned given[6] = {float_to_bits(a0), float_to_bits(a1), float_to_bits(a2),
                             float_to_bits(a3), float_to_bits(b0), float_to_bits(b1)};
  const unsigned* lanes = packjit_thread->gather(packjit_thread, given);
  int g = int(threadIdx.x & 31) / 4, c = int(threadIdx.x & 31) % 4;
  for (int r = 0; r < 4; ++r) {
    for (int k = 0; k < 8; ++k) {
      float a = tf32(lanes[(4 * g + k % 4) * 6 + k / 4 * 2 + r / 2]);
      sums[r] += a * tf32(lanes[(4 * (2 * c + r % 2) + k % 4) * 6 + 4 + k / 4]);
    }
  }
}
inline float exp2_flush(float x) {
  float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float exp2_full(float x) { return __builtin_exp2f(x); }
inline float absolute(float x) { return __builtin_fabsf(x); }
inline float minimum(float x, float y) { return __builtin_fminf(x, y); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <int COUNT>
inline void store_words(void* to, const uint32 (&word)[COUNT]) {
  for (int i = 0; i < COUNT; ++i) static_cast<uint32*>(to)[i] = word[i];
}
#if DTYPE == FP16
// In integers, because not every host compiler has a half type.
inline float fp16_to_float(uint16 x) {
  uint32 sign = uint32(x & 0x8000) << 16, magnitude = x & 0x7fff, bits;
  if (magnitude < 0x0400) {  // subnormal: 2^-14 + magnitude * 2^-24, less the 2^-14
    bits = float_to_bits(bits_to_float(0x38800000u + (magnitude << 13)) - 0x1p-14f);
  } else if (magnitude < 0x7c00) {
    bits = (magnitude << 13) + 0x38000000u;  // exponent bias 15 becomes 127
  } else {
    bits = magnitude == 0x7c00 ? 0x7f800000u : 0x7fc00000u;
  }
  return bits_to_float(sign | bits);
}
// Rounds to nearest even.
inline uint16 float_to_fp16(float x) {
  uint32 sign = float_to_bits(x) >> 16 & 0x8000u, magnitude = float_to_bits(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return uint16(sign | 0x7c00u);  // from 65520 on the nearest is infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5, whose last bit is 2^-24, rounds to a multiple of the smallest half.
    return uint16(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  magnitude += 0x0fffu + (magnitude >> 13 & 1u);
  return uint16(sign | (magnitude - 0x38000000u) >> 13);
}
#endif
#if DTYPE == BF16 && CONVERT == NATIVE
inline uint16 float_to_bf16(float x) {
  uint32 bits = float_to_bits(x);
  uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16(x == x ? rounded : 0x7fffu);
}
#endif
#if CONVERT == NATIVE && DTYPE != FP32
inline uint32 float_to_half_pair(float low, float high) {
#if DTYPE == FP16
  return uint32(float_to_fp16(low)) | uint32(float_to_fp16(high)) << 16;
#else
  return uint32(float_to_bf16(low)) | uint32(float_to_bf16(high)) << 16;
#endif
}
#endif
