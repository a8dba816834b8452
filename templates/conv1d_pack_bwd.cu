// The causal convolution of packed sequences, backward. With pre[t] the sum before the activation and
// g[t] = dout[t] * act'(pre[t]):
//
//   dx[t]         = sum over k of weight[W-1-k] * g[t+k], where t+k is in the run of t
//   dweight[W-1-k] = sum over t of g[t] * (the input that tap k of t read, initial states included)
//   dbias         = sum over t of g[t]
//
// One thread owns VECTOR channels and walks a tile of tokens and W-1 more, loaded as in the forward, or by way of
// shared memory (STAGES), where more can be under way than registers could take. It recomputes pre[t] from inputs that
// it keeps in registers, and keeps the W unfinished sums of dx beside them: g[t] goes to the tokens at distance 0..W-1
// before it that are in its run. The sums over tokens are added up within a block and leave as one partial sum a block
// and channel; conv1d_pack_bwd_sum adds those. All of it in a fixed order. dfinal_states adds to dx of the last W-1
// tokens of a sequence, since the final state is a copy of those inputs.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/conv_arguments.cuh"
#include "device/conv_tile.cuh"
#include "device/conv_history.cuh"

#if HAS_FINAL_STATES && CONV_WIDTH > 1
// How many tokens follow token t in its run, counted up to W-1.
__device__ __forceinline__ int run_tokens_left(const ConvArguments& args, int64 row, int64 t) {
  int left = 0;
  while (left < CONV_WIDTH - 1 && t + left + 1 < args.seqlen && run_index(args, row, t + left + 1) > 0) ++left;
  return left;
}

// Column `column` of a sequence's dfinal_states.
__device__ __forceinline__ float final_state_gradient(const ConvArguments& args, int64 slot, int64 channel,
                                                      int column) {
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

// LOAD_TOKENS tokens as they stand in memory: those of the tile from its token `first` on, and those behind the tile
// whose g its last tokens need. `last_index` is the index in its run of the last token, or of the tile's last.
__device__ __forceinline__ int last_index(const ConvArguments& args, const ConvTile& tile, int first) {
  int last = first + LOAD_TOKENS < tile.tokens ? first + LOAD_TOKENS - 1 : tile.tokens - 1;
  return run_index(args, tile.row, tile.begin + last);
}
#if STAGES > 0
// Batches come through shared memory, STAGES of them under way. A thread reads only what it has copied itself, so it
// waits for its own copies and for no other thread.
struct Batch {
  int last_index;
  Pack* packs;  // every BLOCK-th, first of x, then of dout
  __device__ __forceinline__ Pack x(int j) const { return packs[j * BLOCK]; }
  __device__ __forceinline__ Pack dout(int j) const { return packs[(LOAD_TOKENS + j) * BLOCK]; }
};
constexpr int STAGE_PACKS = 2 * LOAD_TOKENS * BLOCK;
__device__ __forceinline__ Pack* packs_at(int first) {
  unsigned stage = unsigned(first) / LOAD_TOKENS % STAGES;
  return reinterpret_cast<Pack*>(shared_memory()) + stage * STAGE_PACKS + threadIdx.x;
}

// Where the token to be copied next stands.
struct Source {
  const Element *x, *dout;
};
__device__ __forceinline__ void copy_packs(const View3& view, const Element*& from, int left, Pack* to) {
#pragma unroll
  for (int j = 0; j < LOAD_TOKENS; ++j) {
    if (j < left) {
      if constexpr (sizeof(Pack) >= 4) {
        copy_async<int(sizeof(Pack))>(to + j * BLOCK, from);
      } else {
        to[j * BLOCK] = load_pack(from);
      }
    }
    from += offset_of(view, 0, 1, 0);
  }
}
__device__ __forceinline__ void copy_batch(const ConvArguments& args, const ConvTile& tile, int first, Source& from) {
  Pack* packs = packs_at(first);
  int left = tile.tokens + tile.after - first;
  if (left >= LOAD_TOKENS) {
    copy_packs(args.x, from.x, LOAD_TOKENS, packs);
    copy_packs(args.dout, from.dout, LOAD_TOKENS, packs + LOAD_TOKENS * BLOCK);
  } else if (left > 0) {
    copy_packs(args.x, from.x, left, packs);
    copy_packs(args.dout, from.dout, left, packs + LOAD_TOKENS * BLOCK);
  }
  commit_copies();
}
#else
struct Batch {
  int last_index;
  Pack loaded_x[LOAD_TOKENS], loaded_dout[LOAD_TOKENS];
  __device__ __forceinline__ Pack x(int j) const { return loaded_x[j]; }
  __device__ __forceinline__ Pack dout(int j) const { return loaded_dout[j]; }
};
__device__ __forceinline__ Batch load_batch(const ConvArguments& args, const ConvTile& tile, int first) {
  Batch batch;
  batch.last_index = last_index(args, tile, first);
  int left = tile.tokens + tile.after - first;
  load_packs(args.x, tile.row, tile.begin + first, left, tile.channel, batch.loaded_x);
  load_packs(args.dout, tile.row, tile.begin + first, left, tile.channel, batch.loaded_dout);
  return batch;
}
#endif

// The sums over tokens: the gradients of the weights of taps 0..W-1, then of the bias.
constexpr int SUMS = CONV_WIDTH + 1;

// dx[k] is the unfinished gradient of the token at distance k; `to` is where the next finished one goes. PLAIN: all
// tokens of the batch are in the tile, and so are the W-1 before each, in its run.
template <bool PLAIN>
__device__ __forceinline__ void walk(const ConvArguments& args, const ConvTile& tile, int first, const Batch& batch,
                                     const Filter& filter, Element*& to, float (&past)[HISTORY][VECTOR],
                                     float (&dx)[CONV_WIDTH][VECTOR], float (&sums)[SUMS][VECTOR]) {
  // Beyond the row there is nothing to add; the walk goes on to finish the last tokens.
#if STAGES == 0
  int index[LOAD_TOKENS];
  if (!PLAIN) load_run_index(args, tile.row, tile.begin + first, tile.tokens + tile.after - first, index);
#endif
#pragma unroll(PLAIN || STAGES == 0 ? LOAD_TOKENS : 1)
  for (int j = 0; j < LOAD_TOKENS; ++j) {
    int64 t = tile.begin + first + j;
    int i = CONV_WIDTH;
#if STAGES > 0
    if (!PLAIN) i = first + j < tile.tokens + tile.after ? run_index(args, tile.row, t) : -1;
#else
    if (!PLAIN) i = index[j];
#endif
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
#pragma unroll
      for (int k = CONV_WIDTH - 1; k > 0; --k) dx[k][v] = dx[k - 1][v];
      dx[0][v] = 0.0f;
    }
    if (i >= 0) {
      if (i == 0) start_run(args, tile.row, t, tile.channel, past);
      float x[VECTOR], pre[VECTOR], g[VECTOR];
      unpack(batch.x(j), x);
      unpack(batch.dout(j), g);
      convolve(filter, x, past, pre);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        g[v] = through_activation(pre[v], g[v]);
#pragma unroll
        for (int k = 0; k < CONV_WIDTH; ++k) {
          if (k <= i) dx[k][v] = fused_multiply_add(filter.weight[k][v], g[v], dx[k][v]);
        }
        if (PLAIN || first + j < tile.tokens) {
          sums[0][v] = fused_multiply_add(g[v], x[v], sums[0][v]);
#pragma unroll
          for (int k = 1; k < CONV_WIDTH; ++k) sums[k][v] = fused_multiply_add(g[v], past[k - 1][v], sums[k][v]);
          sums[CONV_WIDTH][v] += g[v];
        }
      }
      advance(past, x);
    }

    if (PLAIN || (first + j >= CONV_WIDTH - 1 && first + j < tile.tokens + CONV_WIDTH - 1)) {
#if HAS_FINAL_STATES && CONV_WIDTH > 1
      int64 finished = t - (CONV_WIDTH - 1);
      // The token at distance k from the end of its run is column W-2-k of the final state.
      int64 slot = i < CONV_WIDTH - 1 ? slot_of(args, tile.row, finished) : -1;
      if (slot >= 0) {
        int left = run_tokens_left(args, tile.row, finished);
        if (left <= CONV_WIDTH - 2) {
#pragma unroll
          for (int v = 0; v < VECTOR; ++v) {
            dx[CONV_WIDTH - 1][v] += final_state_gradient(args, slot, tile.channel + v, CONV_WIDTH - 2 - left);
          }
        }
      }
#endif
      store_pack(to, dx[CONV_WIDTH - 1]);
      to += offset_of(args.dx, 0, 1, 0);
    }
  }
}

// Adds up, over the tiles of a block, what threads of the same channels have; each step halves the tiles. The sums are
// those of lane 0 afterwards. All threads of the block take part.
__device__ __forceinline__ void add_tiles(int lane, float (&value)[SUMS][VECTOR]) {
  // (SUMS * VECTOR, BLOCK), from this thread's column on.
  float* given = reinterpret_cast<float*>(shared_memory()) + threadIdx.x;
  for (int half = BLOCK_TILES / 2; half > 0; half /= 2) {
    bool gives = lane >= half && lane < 2 * half;
#pragma unroll
    for (int n = 0; n < SUMS * VECTOR; ++n) {
      if (gives) given[n * BLOCK] = value[n / VECTOR][n % VECTOR];
    }
    sync_block();
#pragma unroll
    for (int n = 0; n < SUMS * VECTOR; ++n) {
      if (lane < half) value[n / VECTOR][n % VECTOR] += given[n * BLOCK + half * TILE_STRIDE];
    }
    sync_block();
  }
}

__device__ __forceinline__ void store_sums(float* to, const float (&x)[VECTOR]) {
  constexpr int WORDS = VECTOR < 4 ? VECTOR : 4;  // 16 bytes at most by one access
#pragma unroll
  for (int v = 0; v < VECTOR; v += WORDS) {
    uint32 word[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) word[i] = float_to_bits(x[v + i]);
    store_words(to + v, word);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) conv1d_pack_bwd(const ConvArguments args) {
#if HAS_EARLY_SUM
  let_next_start();
#endif
  for (int64 turn = blockIdx.y; turn < conv_turns(args); turn += gridDim.y) {
    ConvTile tile = conv_tile(args, turn);
    float sums[SUMS][VECTOR] = {};
    if (tile.exists) {
#if STAGES > 0
      Source from = {element_at(args.x, tile.row, tile.begin, tile.channel),
                     element_at(args.dout, tile.row, tile.begin, tile.channel)};
#pragma unroll 1
      for (int n = 0; n < STAGES * LOAD_TOKENS; n += LOAD_TOKENS) copy_batch(args, tile, n, from);
      int next_index = last_index(args, tile, 0);
#else
      Batch next = load_batch(args, tile, 0);
#endif
      Filter filter;
      load_filter(args, tile.channel, filter);
      float past[HISTORY][VECTOR], dx[CONV_WIDTH][VECTOR] = {};
      load_past(args, tile.row, tile.begin, tile.channel, past);

      Element* to = output_at(args.dx, tile.row, tile.begin, tile.channel);
      int first = 0;
      do {
#if STAGES > 0
        Batch batch = {next_index, packs_at(first)};
        next_index = last_index(args, tile, first + LOAD_TOKENS);
        wait_copies_but<STAGES - 1>();
#else
        Batch batch = next;
#if HAS_PREFETCH
        next = load_batch(args, tile, first + LOAD_TOKENS);
#endif
#endif
        if (batch.last_index >= LOAD_TOKENS + CONV_WIDTH - 2 && first >= CONV_WIDTH - 1 &&
            first + LOAD_TOKENS <= tile.tokens) {
          walk<true>(args, tile, first, batch, filter, to, past, dx, sums);
        } else {
          walk<false>(args, tile, first, batch, filter, to, past, dx, sums);
        }
#if STAGES > 0
        copy_batch(args, tile, first + STAGES * LOAD_TOKENS, from);
#elif !HAS_PREFETCH
        next = load_batch(args, tile, first + LOAD_TOKENS);
#endif
        first += LOAD_TOKENS;
      } while (first < tile.tokens + CONV_WIDTH - 1);
    }
#if STAGES > 0 && BLOCK_TILES > 1
    sync_block();  // sums are exchanged where the batches were
#endif
    add_tiles(tile.lane, sums);
    if (tile.lane == 0 && tile.exists) {
#pragma unroll
      for (int n = 0; n < SUMS; ++n) {
        store_sums(args.partial + (tile.group * SUMS + n) * args.dim + tile.channel, sums[n]);
      }
    }
  }
}

// Adds the groups' partial sums. SLICES threads share a column: each adds every SLICES-th group, and the first of them
// adds what they have.
constexpr int COLUMNS = 32, SLICES = 8;
extern "C" __global__ void __launch_bounds__(COLUMNS* SLICES) conv1d_pack_bwd_sum(const ConvArguments args) {
#if HAS_EARLY_SUM
  wait_for_previous();
#endif
  float* of_slices = reinterpret_cast<float*>(shared_memory());  // (SLICES, COLUMNS)
  int64 groups = tile_groups(args), columns = args.dim * SUMS;
  int64 column = int64(blockIdx.x) * COLUMNS + threadIdx.x % COLUMNS;
  int slice = int(threadIdx.x) / COLUMNS;
  CompensatedSum sum = {0.0f, 0.0f};
  if (column < columns) {
#pragma unroll 8
    for (int64 group = slice; group < groups; group += SLICES) sum.add(args.partial[group * columns + column]);
  }
  of_slices[threadIdx.x] = sum.sum;
  sync_block();
  if (slice > 0 || column >= columns) return;
#pragma unroll
  for (int other = 1; other < SLICES; ++other) sum.add(of_slices[other * COLUMNS + threadIdx.x]);
  int64 channel = column % args.dim;
  int n = int(column / args.dim);
  if (n < CONV_WIDTH) {
    args.dweight[channel * CONV_WIDTH + CONV_WIDTH - 1 - n] = sum.sum;
  } else {
#if HAS_BIAS
    args.dbias[channel] = sum.sum;
#endif
  }
}

#if HAS_INITIAL_STATES && CONV_WIDTH > 1
// dinitial_states[s, c, j]: token i of the run reads column j by tap k = i + W-1-j, as long as i <= j. A run shorter
// than its history hands the rest of its initial state on to its final state.
extern "C" __global__ void __launch_bounds__(128, 1) conv1d_pack_bwd_initial_states(const ConvArguments args) {
  int64 channel = int64(blockIdx.x) * 128 + threadIdx.x;
  if (channel >= args.dim) return;
  float weight[CONV_WIDTH], bias = 0.0f;
  for (int k = 0; k < CONV_WIDTH; ++k) {
#if HAS_FP32_WEIGHTS
    weight[k] = static_cast<const float*>(args.weight)[channel * CONV_WIDTH + CONV_WIDTH - 1 - k];
#else
    weight[k] = to_float(static_cast<const Element*>(args.weight)[channel * CONV_WIDTH + CONV_WIDTH - 1 - k]);
#endif
  }
#if HAS_BIAS && HAS_FP32_WEIGHTS
  bias = static_cast<const float*>(args.bias)[channel];
#elif HAS_BIAS
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
    Element* out =
        static_cast<Element*>(args.dinitial_states) + (int64(item.slot) * args.dim + channel) * (CONV_WIDTH - 1);
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
