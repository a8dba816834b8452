// The causal convolution of packed sequences, backward. With pre[t] the sum before the activation and
// g[t] = dout[t] * act'(pre[t]):
//
//   dx[t]         = sum over k of weight[W-1-k] * g[t+k], where t+k is in the run of t
//   dweight[W-1-k] = sum over t of g[t] * (the input that tap k of t read, initial states included)
//   dbias         = sum over t of g[t]
//
// One thread owns VECTOR channels and walks TILE_TOKENS tokens and W-1 more. It recomputes pre[t] from inputs that it keeps
// in registers, and keeps the W unfinished sums of dx beside them: g[t] goes to the tokens at distance 0..W-1 before it that
// are in its run. The sums over tokens leave as one partial sum a tile; conv1d_pack_bwd_sum adds them in a fixed order.
// dfinal_states adds to dx of the last W-1 tokens of a sequence, since the final state is a copy of those inputs.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/conv_arguments.cuh"
#include "device/conv_history.cuh"

#if HAS_FINAL_STATES && CONV_WIDTH > 1
// How many tokens follow token t in its run, counted up to W-1.
__device__ __forceinline__ int run_tokens_left(const ConvArguments& args, int64 row, int64 t) {
  int left = 0;
  while (left < CONV_WIDTH - 1 && t + left + 1 < args.seqlen && run_index(args, row, t + left + 1) > 0) ++left;
  return left;
}

// Column `column` of a sequence's dfinal_states.
__device__ __forceinline__ float final_state_gradient(const ConvArguments& args, int64 slot, int64 channel, int column) {
  const Element* states = static_cast<const Element*>(args.dfinal_states);
  return to_float(states[(slot * args.dim + channel) * (CONV_WIDTH - 1) + column]);
}
#endif

// g[t], from the sum before the activation and dout[t].
__device__ __forceinline__ float through_activation(float pre, float dout) {
#if ACTIVATION == SILU
  return dout * silu_derivative(pre, sigmoid(pre));
#else
  return dout;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK) conv1d_pack_bwd(const ConvArguments args) {
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
    float past[HISTORY][VECTOR];
    load_past(args, row, begin, channel, past);
    // dx[k] is the unfinished gradient of the token at distance k; dweight[k] that of the weight of tap k.
    float dx[CONV_WIDTH][VECTOR], dweight[CONV_WIDTH][VECTOR], dbias[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      dbias[v] = 0.0f;
#pragma unroll
      for (int k = 0; k < CONV_WIDTH; ++k) dx[k][v] = dweight[k][v] = 0.0f;
    }

#pragma unroll 4
    for (int64 t = begin; t < end + CONV_WIDTH - 1; ++t) {
      // Beyond the row there is nothing to add; the loop goes on to finish the last tokens.
      int i = t < args.seqlen ? run_index(args, row, t) : -1;
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
#pragma unroll
        for (int k = CONV_WIDTH - 1; k > 0; --k) dx[k][v] = dx[k - 1][v];
        dx[0][v] = 0.0f;
      }
      if (i >= 0) {
        if (i == 0) start_run(args, row, t, channel, past);
        float x[VECTOR], pre[VECTOR], g[VECTOR];
        load_pack(element_at(args.x, row, t, channel), x);
        load_pack(element_at(args.dout, row, t, channel), g);
        convolve(weight, bias, x, past, pre);
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
          g[v] = through_activation(pre[v], g[v]);
#pragma unroll
          for (int k = 0; k < CONV_WIDTH; ++k) {
            if (k <= i) dx[k][v] = fused_multiply_add(weight[k][v], g[v], dx[k][v]);
          }
          if (t < end) {
            dbias[v] += g[v];
            dweight[0][v] = fused_multiply_add(g[v], x[v], dweight[0][v]);
#pragma unroll
            for (int k = 1; k < CONV_WIDTH; ++k) {
              dweight[k][v] = fused_multiply_add(g[v], past[k - 1][v], dweight[k][v]);
            }
          }
        }
        advance(past, x);
      }

      int64 finished = t - (CONV_WIDTH - 1);
      if (finished >= begin && finished < end) {
#if HAS_FINAL_STATES && CONV_WIDTH > 1
        // The token at distance k from the end of its run is column W-2-k of the final state.
        int64 slot = slot_of(args, row, finished);
        if (slot >= 0) {
          int left = run_tokens_left(args, row, finished);
          if (left <= CONV_WIDTH - 2) {
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
              dx[CONV_WIDTH - 1][v] += final_state_gradient(args, slot, channel + v, CONV_WIDTH - 2 - left);
            }
          }
        }
#endif
        store_pack(output_at(args.dx, row, finished, channel), dx[CONV_WIDTH - 1]);
      }
    }

#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      float* partial = args.partial + (tile * args.dim + channel + v) * (CONV_WIDTH + 1);
#pragma unroll
      for (int k = 0; k < CONV_WIDTH; ++k) partial[CONV_WIDTH - 1 - k] = dweight[k][v];
      partial[CONV_WIDTH] = dbias[v];
    }
  }
}

// Adds the tiles' partial sums, first tile first.
extern "C" __global__ void __launch_bounds__(128) conv1d_pack_bwd_sum(const ConvArguments args) {
  int64 tiles = (args.seqlen + TILE_TOKENS - 1) / TILE_TOKENS * args.batch;
  int64 sums = args.dim * (CONV_WIDTH + 1);
  int64 index = int64(blockIdx.x) * 128 + threadIdx.x;
  if (index >= sums) return;
  CompensatedSum sum = {0.0f, 0.0f};
  for (int64 tile = 0; tile < tiles; ++tile) sum.add(args.partial[tile * sums + index]);
  int64 channel = index / (CONV_WIDTH + 1), column = index % (CONV_WIDTH + 1);
  if (column < CONV_WIDTH) {
    args.dweight[channel * CONV_WIDTH + column] = sum.sum;
  } else {
#if HAS_BIAS
    args.dbias[channel] = sum.sum;
#endif
  }
}

#if HAS_INITIAL_STATES && CONV_WIDTH > 1
// dinitial_states[s, c, j]: token i of the run reads column j by tap k = i + W-1-j, as long as i <= j. A run shorter than
// its history hands the rest of its initial state on to its final state.
extern "C" __global__ void __launch_bounds__(128) conv1d_pack_bwd_initial_states(const ConvArguments args) {
  int64 channel = int64(blockIdx.x) * 128 + threadIdx.x;
  if (channel >= args.dim) return;
  float weight[CONV_WIDTH], bias = 0.0f;
  for (int k = 0; k < CONV_WIDTH; ++k) {
    weight[k] = to_float(static_cast<const Element*>(args.weight)[channel * CONV_WIDTH + CONV_WIDTH - 1 - k]);
  }
#if HAS_BIAS
  bias = to_float(static_cast<const Element*>(args.bias)[channel]);
#endif
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) continue;
    // Inputs around the start of the run: the initial state, then the first tokens.
    float x[2 * CONV_WIDTH - 2], gradient[CONV_WIDTH - 1];
#pragma unroll
    for (int j = 0; j < CONV_WIDTH - 1; ++j) {
      x[j] = initial_state(args, item.slot, channel, j);
      x[CONV_WIDTH - 1 + j] =
          j < item.length ? to_float(*element_at(args.x, item.row, int64(item.start) + j, channel)) : 0.0f;
      gradient[j] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < CONV_WIDTH - 1; ++i) {
      if (i < item.length) {
        float pre = bias;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH; ++k) pre = fused_multiply_add(weight[k], x[CONV_WIDTH - 1 + i - k], pre);
        float dout = to_float(*element_at(args.dout, item.row, int64(item.start) + i, channel));
        float g = through_activation(pre, dout);
#pragma unroll
        for (int j = i; j < CONV_WIDTH - 1; ++j) {
          gradient[j] = fused_multiply_add(weight[i + CONV_WIDTH - 1 - j], g, gradient[j]);
        }
      }
    }
    Element* out = static_cast<Element*>(args.dinitial_states) + (int64(item.slot) * args.dim + channel) * (CONV_WIDTH - 1);
#pragma unroll
    for (int j = 0; j < CONV_WIDTH - 1; ++j) {
#if HAS_FINAL_STATES
      // Column j of the initial state is column j - length of the final state.
      if (j >= item.length) gradient[j] += final_state_gradient(args, item.slot, channel, j - item.length);
#endif
      out[j] = from_float(gradient[j]);
    }
  }
}
#endif
