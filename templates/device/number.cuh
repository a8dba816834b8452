#pragma once
#include "parameters.cuh"
#include "primitives.cuh"
#include "views.cuh"
// Elements of activations in memory, and their values in registers, which are always fp32.
#if DTYPE == FP32
typedef float Element;
__device__ __forceinline__ float to_float(Element x) { return x; }
__device__ __forceinline__ Element from_float(float x) { return x; }
#elif DTYPE == FP16
typedef uint16 Element;
__device__ __forceinline__ float to_float(Element x) { return fp16_to_float(x); }
__device__ __forceinline__ Element from_float(float x) { return float_to_fp16(x); }
#else
typedef uint16 Element;
__device__ __forceinline__ float to_float(Element x) { return bits_to_float(uint32(x) << 16); }
#if CONVERT == NATIVE
__device__ __forceinline__ Element from_float(float x) { return float_to_bf16(x); }
#else
// Round to nearest even on the upper half of the bits; a NaN stays one.
__device__ __forceinline__ Element from_float(float x) {
  uint32 bits = float_to_bits(x);
  uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Element(x == x ? rounded : 0x7fffu);
}
#endif
#endif

// VECTOR neighbouring elements, moved by one access. The address must be a multiple of their size.
#if DTYPE != FP32 && VECTOR == 1
struct Pack {
  Element element;
};
__device__ __forceinline__ void unpack(const Pack& pack, float (&x)[1]) { x[0] = to_float(pack.element); }
__device__ __forceinline__ void store_pack(Element* to, const float (&x)[1]) { *to = from_float(x[0]); }
#else
constexpr int PACK_WORDS = VECTOR * int(sizeof(Element)) / 4;
struct alignas(4 * PACK_WORDS) Pack {
  uint32 word[PACK_WORDS];
};
__device__ __forceinline__ void unpack(const Pack& pack, float (&x)[VECTOR]) {
#pragma unroll
  for (int i = 0; i < PACK_WORDS; ++i) {
#if DTYPE == FP32
    x[i] = bits_to_float(pack.word[i]);
#else
    x[2 * i] = to_float(Element(pack.word[i]));
    x[2 * i + 1] = to_float(Element(pack.word[i] >> 16));
#endif
  }
}
__device__ __forceinline__ void store_pack(Element* to, const float (&x)[VECTOR]) {
  uint32 word[PACK_WORDS];
#pragma unroll
  for (int i = 0; i < PACK_WORDS; ++i) {
#if DTYPE == FP32
    word[i] = float_to_bits(x[i]);
#elif CONVERT == NATIVE
    word[i] = float_to_half_pair(x[2 * i], x[2 * i + 1]);
#else
    word[i] = uint32(from_float(x[2 * i])) | uint32(from_float(x[2 * i + 1])) << 16;
#endif
  }
  store_words(to, word);
}
#endif
// Moves a pack from shared to global memory as it is.
__device__ __forceinline__ void copy_pack(Element* to, const Element* from) {
#if DTYPE != FP32 && VECTOR == 1
  *to = *from;
#else
  Pack pack = *reinterpret_cast<const Pack*>(from);
  store_words(to, pack.word);
#endif
}
// As it stands in memory, for loads that are to be under way before the first of them is waited for.
__device__ __forceinline__ Pack load_pack(const Element* from) { return *reinterpret_cast<const Pack*>(from); }
__device__ __forceinline__ void load_pack(const Element* from, float (&x)[VECTOR]) { unpack(load_pack(from), x); }

// Where an element of an activation stands. The layout says which stride is 1.
__device__ __forceinline__ int64 offset_of(const View3& view, int64 row, int64 token, int64 channel) {
#if LAYOUT == TOKEN_MAJOR
  return row * view.batch + token * view.token + channel;
#elif LAYOUT == CHANNEL_MAJOR
  return row * view.batch + token + channel * view.channel;
#else
  return row * view.batch + token * view.token + channel * view.channel;
#endif
}
__device__ __forceinline__ const Element* element_at(const View3& view, int64 row, int64 token, int64 channel) {
  return static_cast<const Element*>(view.data) + offset_of(view, row, token, channel);
}
__device__ __forceinline__ Element* output_at(const View3& view, int64 row, int64 token, int64 channel) {
  return static_cast<Element*>(view.data) + offset_of(view, row, token, channel);
}
