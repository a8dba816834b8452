#pragma once
#include "conv_arguments.cuh"
#include "number.cuh"
#include "run_index.cuh"
// The filter and the inputs before the current token, as both directions of conv1d_pack keep them in registers.
constexpr int HISTORY = CONV_WIDTH > 1 ? CONV_WIDTH - 1 : 1;

// weight[k] meets the input at distance k, so the columns are taken from the last to the first.
__device__ __forceinline__ void load_filter(const ConvArguments& args, int64 channel,
                                            float (&weight)[CONV_WIDTH][VECTOR], float (&bias)[VECTOR]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    const Element* row = static_cast<const Element*>(args.weight) + (channel + v) * CONV_WIDTH;
#pragma unroll
    for (int k = 0; k < CONV_WIDTH; ++k) weight[k][v] = to_float(row[CONV_WIDTH - 1 - k]);
#if HAS_BIAS
    bias[v] = to_float(static_cast<const Element*>(args.bias)[channel + v]);
#else
    bias[v] = 0.0f;
#endif
  }
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

// The inputs before token t of a row: those of its run that are in the row, else the initial state, else zero.
__device__ __forceinline__ void load_past(const ConvArguments& args, int64 row, int64 t, int64 channel,
                                          float (&past)[HISTORY][VECTOR]) {
  int i = run_index(args, row, t);
#if HAS_INITIAL_STATES && CONV_WIDTH > 1
  int64 slot = slot_of(args, row, t);
#endif
#pragma unroll
  for (int k = 0; k < HISTORY; ++k) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) past[k][v] = 0.0f;
    int distance = k + 1;
    if (distance <= i && distance < CONV_WIDTH) {
      load_pack(element_at(args.x, row, t - distance, channel), past[k]);
    }
#if HAS_INITIAL_STATES && CONV_WIDTH > 1
    if (i >= 0 && distance > i) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        past[k][v] = initial_state(args, slot, channel + v, CONV_WIDTH - 1 - (distance - i));
      }
    }
#endif
  }
}

// y = bias + sum over k of weight[k] * (input at distance k)
__device__ __forceinline__ void convolve(const float (&weight)[CONV_WIDTH][VECTOR], const float (&bias)[VECTOR],
                                         const float (&x)[VECTOR], const float (&past)[HISTORY][VECTOR],
                                         float (&y)[VECTOR]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    y[v] = fused_multiply_add(weight[0][v], x[v], bias[v]);
#pragma unroll
    for (int k = 1; k < CONV_WIDTH; ++k) y[v] = fused_multiply_add(weight[k][v], past[k - 1][v], y[v]);
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
