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
// What a kernel's thread can see and do. Layout shared with runtime/host/.
struct HostThread {
  HostIndex thread, block, block_size, grid_size;
  const void* argument;                                         // the kernel's parameter struct
  char* shared;                                                 // dynamic shared memory of the block
  void (*sync_block)(HostThread*);                              // returns once every thread of the block has called it
  unsigned (*exchange)(HostThread*, unsigned value, int lane);  // warp collective: the value given by another lane
};
extern "C" {
thread_local HostThread* packjit_thread = nullptr;
void packjit_set_thread(HostThread* thread) { packjit_thread = thread; }
}
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (packjit_thread->thread)
#define blockIdx (packjit_thread->block)
#define gridDim (packjit_thread->grid_size)

inline char* shared_memory() { return packjit_thread->shared; }
inline void sync_block() { packjit_thread->sync_block(packjit_thread); }
inline float bits_to_float(uint32 x) { return __builtin_bit_cast(float, x); }
inline uint32 float_to_bits(float x) { return __builtin_bit_cast(uint32, x); }
inline float shuffle_xor(float x, int mask) {
  int lane = int(threadIdx.x & 31) ^ mask;
  return bits_to_float(packjit_thread->exchange(packjit_thread, float_to_bits(x), lane));
}
inline float exp2_flush(float x) {
  float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float exp2_full(float x) { return __builtin_exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#if DTYPE == FP16
inline float fp16_to_float(uint16 x) {
  _Float16 h = __builtin_bit_cast(_Float16, x);
  return float(h);
}
inline uint16 float_to_fp16(float x) { return __builtin_bit_cast(uint16, _Float16(x)); }
#endif
#if DTYPE == BF16 && CONVERT == NATIVE
inline uint16 float_to_bf16(float x) {
  uint32 bits = float_to_bits(x);
  uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16(x == x ? rounded : 0x7fffu);
}
#endif
