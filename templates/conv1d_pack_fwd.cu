// The causal convolution of packed sequences, forward:
//
//   out[t] = act(bias + sum over k = 0..W-1 of weight[W-1-k] * x[t-k])
//
// where x[t-k] is taken from the token's own run. With i the index of t inside its run, a tap at distance k > i reads
// column W-1-(k-i) of the run's initial state instead, or zero without one. Padding tokens give 0.
//
// Memory traffic decides: one thread owns VECTOR channels and walks a tile of tokens, with the last W-1 inputs in
// registers, so that each input is read about once. It asks for LOAD_TOKENS tokens at a time, before it works on those
// that it asked for the time before (PREFETCH), or after. When a run begins, the inputs in registers are replaced; that
// is all a boundary costs.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/conv_arguments.cuh"
#include "device/conv_tile.cuh"
#include "device/conv_history.cuh"

// LOAD_TOKENS tokens as they stand in memory.
struct Batch {
  int last_index;  // index in its run of the last token, or of the tile's last
  Pack x[LOAD_TOKENS];
};
// Those of the tile from its token `first` on.
__device__ __forceinline__ Batch load_batch(const ConvArguments& args, const ConvTile& tile, int first) {
  Batch batch;
  int last = first + LOAD_TOKENS < tile.tokens ? first + LOAD_TOKENS - 1 : tile.tokens - 1;
  batch.last_index = run_index(args, tile.row, tile.begin + last);
  load_packs(args.x, tile.row, tile.begin + first, tile.tokens - first, tile.channel, batch.x);
  return batch;
}

// PLAIN: no token of the batch begins a run, is padding or lies behind the tile.
template <bool PLAIN>
__device__ __forceinline__ void walk(const ConvArguments& args, const ConvTile& tile, int first, const Batch& batch,
                                     const Filter& filter, float (&past)[HISTORY][VECTOR]) {
  int index[LOAD_TOKENS];
  if (!PLAIN) load_run_index(args, tile.row, tile.begin + first, tile.tokens - first, index);
#pragma unroll
  for (int j = 0; j < LOAD_TOKENS; ++j) {
    if (!PLAIN && first + j >= tile.tokens) break;
    int64 t = tile.begin + first + j;
    int i = PLAIN ? 1 : index[j];
    if (i == 0) start_run(args, tile.row, t, tile.channel, past);
    float x[VECTOR], y[VECTOR];
    unpack(batch.x[j], x);
    convolve(filter, x, past, y);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
#if ACTIVATION == SILU
      y[v] = silu(y[v]);
#endif
      y[v] = i < 0 ? 0.0f : y[v];
    }
    store_pack(output_at(args.out, tile.row, t, tile.channel), y);
    advance(past, x);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) conv1d_pack_fwd(const ConvArguments args) {
  for (int64 turn = blockIdx.y; turn < conv_turns(args); turn += gridDim.y) {
    ConvTile tile = conv_tile(args, turn);
    if (!tile.exists) continue;
    Batch next = load_batch(args, tile, 0);
    Filter filter;
    load_filter(args, tile.channel, filter);
    // past[k] is the input at distance k + 1 from the current token.
    float past[HISTORY][VECTOR];
    load_past(args, tile.row, tile.begin, tile.channel, past);

    int first = 0;
    do {
      Batch batch = next;
#if HAS_PREFETCH
      next = load_batch(args, tile, first + LOAD_TOKENS);
#endif
      if (batch.last_index >= LOAD_TOKENS && first + LOAD_TOKENS <= tile.tokens) {
        walk<true>(args, tile, first, batch, filter, past);
      } else {
        walk<false>(args, tile, first, batch, filter, past);
      }
#if !HAS_PREFETCH
      next = load_batch(args, tile, first + LOAD_TOKENS);
#endif
      first += LOAD_TOKENS;
    } while (first < tile.tokens);
  }
}

#if HAS_FINAL_STATES && CONV_WIDTH > 1
// final_states[s, c, j] is the input at distance W-2-j from the last token of sequence s; where the sequence is
// shorter, its initial state, moved up by the sequence's length.
extern "C" __global__ void __launch_bounds__(128) conv1d_pack_fwd_final_states(const ConvArguments args) {
  int64 channel = int64(blockIdx.x) * 128 + threadIdx.x;
  if (channel >= args.dim) return;
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) continue;
    Element* state =
        static_cast<Element*>(args.final_states) + (int64(item.slot) * args.dim + channel) * (CONV_WIDTH - 1);
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
