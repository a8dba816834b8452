#pragma once
#include "conv_arguments.cuh"
#include "number.cuh"
#include "run_index.cuh"
// The filter and the inputs before the current token, as both directions of conv1d_pack keep them in registers.
constexpr int HISTORY = CONV_WIDTH > 1 ? CONV_WIDTH - 1 : 1;

// weight[k] meets the input at distance k.
struct Filter {
  float weight[CONV_WIDTH][VECTOR], bias[VECTOR];
};

#if HAS_FP32_WEIGHTS && DTYPE != FP32
// VECTOR neighbouring weights of fp32, by accesses of 16 bytes at most.
constexpr int WEIGHTS = VECTOR < 4 ? VECTOR : 4;
struct alignas(4 * WEIGHTS) WeightPack {
  float weight[WEIGHTS];
};
__device__ __forceinline__ void load_pack(const float* from, float (&x)[VECTOR]) {
#pragma unroll
  for (int v = 0; v < VECTOR; v += WEIGHTS) {
    WeightPack pack = *reinterpret_cast<const WeightPack*>(from + v);
#pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) x[v + i] = pack.weight[i];
  }
}
#endif

// The weights of VECTOR channels lie side by side, CONV_WIDTH a channel, the one for the oldest input first.
__device__ __forceinline__ void load_filter(const ConvArguments& args, int64 channel, Filter& filter) {
#if HAS_FP32_WEIGHTS
  const float* from = static_cast<const float*>(args.weight) + channel * CONV_WIDTH;
#else
  const Element* from = static_cast<const Element*>(args.weight) + channel * CONV_WIDTH;
#endif
  float weights[CONV_WIDTH][VECTOR];
#pragma unroll
  for (int n = 0; n < CONV_WIDTH; ++n) load_pack(from + n * VECTOR, weights[n]);
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    filter.bias[v] = 0.0f;
#pragma unroll
    for (int k = 0; k < CONV_WIDTH; ++k) {
      int at = v * CONV_WIDTH + CONV_WIDTH - 1 - k;
      filter.weight[k][v] = weights[at / VECTOR][at % VECTOR];
    }
  }
#if HAS_BIAS && HAS_FP32_WEIGHTS
  load_pack(static_cast<const float*>(args.bias) + channel, filter.bias);
#elif HAS_BIAS
  load_pack(static_cast<const Element*>(args.bias) + channel, filter.bias);
#endif
}

#if HAS_INITIAL_STATES && CONV_WIDTH > 1
// Column `column` of a sequence's initial state; the last column is the input just before its first token.
__device__ __forceinline__ float initial_state(const ConvArguments& args, int64 slot, int64 channel, int column) {
  const Element* states = static_cast<const Element*>(args.initial_states);
  return to_float(states[(slot * args.dim + channel) * (CONV_WIDTH - 1) + column]);
}
#endif

// A run begins at token t: its history is its initial state, or zero. A replacement, so that an Inf or NaN of the
// sequence before cannot reach it.
__device__ __forceinline__ void start_run(const ConvArguments& args, int64 row, int64 t, int64 channel,
                                          float (&past)[HISTORY][VECTOR]) {
#if HAS_INITIAL_STATES && CONV_WIDTH > 1
  int64 slot = slot_of(args, row, t);
#endif
#pragma unroll
  for (int k = 0; k < HISTORY; ++k) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
#if HAS_INITIAL_STATES && CONV_WIDTH > 1
      past[k][v] = initial_state(args, slot, channel + v, CONV_WIDTH - 2 - k);
#else
      past[k][v] = 0.0f;
#endif
    }
  }
}

// The inputs before token t of a row: those of its run that are in the row, else the initial state, else zero. What is
// not of its run is loaded too, so that no load has to wait for another.
__device__ __forceinline__ void load_past(const ConvArguments& args, int64 row, int64 t, int64 channel,
                                          float (&past)[HISTORY][VECTOR]) {
  int i = run_index(args, row, t);
  Pack before[HISTORY] = {};
#pragma unroll
  for (int k = 0; k < CONV_WIDTH - 1; ++k) {
    if (t > k) before[k] = load_pack(element_at(args.x, row, t - (k + 1), channel));
  }
#pragma unroll
  for (int k = 0; k < HISTORY; ++k) {
    unpack(before[k], past[k]);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) past[k][v] = k < i ? past[k][v] : 0.0f;
  }
#if HAS_INITIAL_STATES && CONV_WIDTH > 1
  if (i < 0 || i >= HISTORY) return;
  int64 slot = slot_of(args, row, t);
#pragma unroll
  for (int k = 0; k < HISTORY; ++k) {
    if (k < i) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      past[k][v] = initial_state(args, slot, channel + v, CONV_WIDTH - 1 - (k + 1 - i));
    }
  }
#endif
}

// LOAD_TOKENS tokens from token t on are loaded together, so that many bytes are under way. Only `left` of them are
// there; others are padding.
__device__ __forceinline__ void load_run_index(const ConvArguments& args, int64 row, int64 t, int left,
                                               int (&index)[LOAD_TOKENS]) {
#pragma unroll
  for (int j = 0; j < LOAD_TOKENS; ++j) index[j] = j < left ? run_index(args, row, t + j) : -1;
}
__device__ __forceinline__ void load_packs(const View3& view, int64 row, int64 t, int left, int64 channel,
                                           Pack (&packs)[LOAD_TOKENS]) {
  if (left >= LOAD_TOKENS) {
#pragma unroll
    for (int j = 0; j < LOAD_TOKENS; ++j) packs[j] = load_pack(element_at(view, row, t + j, channel));
  } else {
#pragma unroll
    for (int j = 0; j < LOAD_TOKENS; ++j) {
      packs[j] = Pack{};
      if (j < left) packs[j] = load_pack(element_at(view, row, t + j, channel));
    }
  }
}

// y = bias + sum over k of weight[k] * (input at distance k)
__device__ __forceinline__ void convolve(const Filter& filter, const float (&x)[VECTOR],
                                         const float (&past)[HISTORY][VECTOR], float (&y)[VECTOR]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    y[v] = fused_multiply_add(filter.weight[0][v], x[v], filter.bias[v]);
#pragma unroll
    for (int k = 1; k < CONV_WIDTH; ++k) y[v] = fused_multiply_add(filter.weight[k][v], past[k - 1][v], y[v]);
  }
}

// The current token becomes the one before.
__device__ __forceinline__ void advance(float (&past)[HISTORY][VECTOR], const float (&x)[VECTOR]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
#pragma unroll
    for (int k = HISTORY - 1; k > 0; --k) past[k][v] = past[k - 1][v];
    past[0][v] = x[v];
  }
}
