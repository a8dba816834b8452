// The causal convolution of packed sequences, forward:
//
//   out[t] = act(bias + sum over k = 0..W-1 of weight[W-1-k] * x[t-k])
//
// where x[t-k] is taken from the token's own run. With i the index of t inside its run, a tap at distance k > i reads
// column W-1-(k-i) of the run's initial state instead, or zero without one. Padding tokens give 0.
//
// Memory traffic decides: one thread owns VECTOR channels and walks TILE_TOKENS tokens, with the last W-1 inputs in
// registers, so that each input is read about once. When a run begins, the inputs in registers are replaced; that is
// all a boundary costs.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/conv_arguments.cuh"
#include "device/conv_history.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv1d_pack_fwd(const ConvArguments args) {
  int64 tiles_per_row = (args.seqlen + TILE_TOKENS - 1) / TILE_TOKENS;
  int64 tiles = tiles_per_row * args.batch;
  int64 channel_vectors = (args.dim + VECTOR - 1) / VECTOR;
  // Neighbouring threads take neighbouring vectors of channels or, where tokens lie side by side, neighbouring tiles.
  int64 fast = int64(blockIdx.x) * BLOCK + threadIdx.x;
#if LAYOUT == CHANNEL_MAJOR
  if (fast >= tiles) return;
  for (int64 slow = blockIdx.y; slow < channel_vectors; slow += gridDim.y) {
    int64 tile = fast, channel = slow * VECTOR;
#else
  if (fast >= channel_vectors) return;
  for (int64 slow = blockIdx.y; slow < tiles; slow += gridDim.y) {
    int64 tile = slow, channel = fast * VECTOR;
#endif
    int64 row = tile / tiles_per_row;
    int64 begin = tile % tiles_per_row * TILE_TOKENS;
    int64 end = begin + TILE_TOKENS < args.seqlen ? begin + TILE_TOKENS : args.seqlen;

    float weight[CONV_WIDTH][VECTOR], bias[VECTOR];
    load_filter(args, channel, weight, bias);
    // past[k] is the input at distance k + 1 from the current token.
    float past[HISTORY][VECTOR];
    load_past(args, row, begin, channel, past);

#pragma unroll 4
    for (int64 t = begin; t < end; ++t) {
      int i = run_index(args, row, t);
      if (i == 0) start_run(args, row, t, channel, past);
      float x[VECTOR], y[VECTOR];
      load_pack(element_at(args.x, row, t, channel), x);
      convolve(weight, bias, x, past, y);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
#if ACTIVATION == SILU
        y[v] = silu(y[v]);
#endif
        y[v] = i < 0 ? 0.0f : y[v];
      }
      store_pack(output_at(args.out, row, t, channel), y);
      advance(past, x);
    }
  }
}

#if HAS_FINAL_STATES && CONV_WIDTH > 1
// final_states[s, c, j] is the input at distance W-2-j from the last token of sequence s; where the sequence is shorter,
// its initial state, moved up by the sequence's length.
extern "C" __global__ void __launch_bounds__(128) conv1d_pack_fwd_final_states(const ConvArguments args) {
  int64 channel = int64(blockIdx.x) * 128 + threadIdx.x;
  if (channel >= args.dim) return;
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) continue;
    Element* state = static_cast<Element*>(args.final_states) + (int64(item.slot) * args.dim + channel) * (CONV_WIDTH - 1);
    for (int j = 0; j < CONV_WIDTH - 1; ++j) {
      int from_start = item.length - 1 - (CONV_WIDTH - 2 - j);
      float x = 0.0f;
      if (from_start >= 0) {
        x = to_float(*element_at(args.x, item.row, int64(item.start) + from_start, channel));
      } else {
#if HAS_INITIAL_STATES
        x = initial_state(args, item.slot, channel, CONV_WIDTH - 1 + from_start);
#endif
      }
      state[j] = from_float(x);
    }
  }
}
#endif
