// The selective scan of packed sequences, backward. With dy[t] the gradient of y before the gate, and
//
//   g[t] = C[t] * dy[t] + a[t+1] * g[t+1]     a[t] = exp(dt[t] * A); beyond the last token, dfinal_states
//
// the gradient of the state after token t, for each sequence, channel and state n:
//
//   dC[t] = sum over channels of dy[t] * h[t]            dz[t] = dout[t] * y[t] * silu'(z[t]),  dy[t] = dout[t] * silu(z[t])
//   dB[t] = sum over channels of g[t] * dt[t] * u[t]     dD = sum over t of dy[t] * u[t]
//   du[t] = dt[t] * sum over n of g[t] * B[t] + D * dy[t]
//   ddt[t] = sum over n of g[t] * (A * a[t] * h[t-1] + B[t] * u[t])
//   ddelta[t] = ddt[t] * softplus'(delta[t] + delta_bias), and ddelta_bias is its sum over t
//   dA = sum over t of g[t] * a[t] * h[t-1] * dt[t]      dinitial_states = a[0] * g[0]
//
// The states are needed from last to first, but can only be computed from first to last. So they are known every
// CHECKPOINT_TILES * TILE_TOKENS tokens of a sequence: stored by ssm_pack_fwd (checkpoints on), or by ssm_pack_bwd_checkpoints, which runs the
// states again into the workspace. ssm_pack_bwd walks the tiles of a sequence from last to first. It stages a tile's inputs in
// shared memory, runs the states through it once to know them before each step of STEP_TOKENS tokens, and then, from the last
// step to the first, recomputes a step's states and decays into registers and goes back through them.
//
// LANES threads share a channel, and a thread takes CHANNEL_GROUPS channels in turn, so that dB and dC are summed over many
// channels before they leave the warp; warps, then blocks (ssm_pack_bwd_sum_bc) are summed by a fixed tree. Sums over time (dA, dD,
// ddelta_bias) stay in shared memory until a block is done with its sequences, and ssm_pack_bwd_sum_channels sums over blocks.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/lane_sum.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_tile.cuh"
#include "device/ssm_segments.cuh"
#include "device/channel_sums.cuh"

constexpr int WARPS = BLOCK / 32;
constexpr int CHANNELS = WARPS * WARP_CHANNELS * CHANNEL_GROUPS;  // of a block
constexpr int STEPS = TILE_TOKENS / STEP_TOKENS;
constexpr int INTERVAL = CHECKPOINT_TILES * TILE_TOKENS;          // tokens between checkpoints
constexpr int OWN = CHANNEL_GROUPS * BLOCK * STATES;              // one float for each state of each turn of each thread
constexpr int SUM_TOKENS = D_STATE > 64 ? STEP_TOKENS : TILE_TOKENS;  // whose dB and dC leave together; many states need much room
constexpr int FOLD_TOKENS = 256;  // after about so many, sums over time are folded into compensated ones
// The elementwise passes over a tile: how often each thread takes VECTOR channels of a token, and whether some do not the last time.
constexpr int ROUNDS = (TILE_TOKENS * CHANNELS / VECTOR + BLOCK - 1) / BLOCK;
constexpr bool RAGGED = TILE_TOKENS * CHANNELS / VECTOR % BLOCK != 0;
#if HAS_Z
constexpr int INPUTS = 4;  // activations: u, delta, dout, z
#else
constexpr int INPUTS = 3;
#endif
constexpr int FETCHED = ROUNDS * BLOCK * VECTOR;  // elements that the block fetches of each
constexpr int SUM_BLOCK = 128;  // threads of the summing kernels

// Which column of the tile a block's channel has: there is a gap after each VECTOR of them where that is many, so that
// threads that stage VECTOR neighbours each write to different banks.
constexpr int GAPS = VECTOR >= 4 ? CHANNELS / VECTOR : 0;
constexpr int COLUMNS = CHANNELS + GAPS;
__device__ __forceinline__ int column_of(int own) { return GAPS > 0 ? own + own / VECTOR : own; }

struct Tile {
  Float4* tokens;       // (TILE_TOKENS, COLUMNS): dt, u, dy, dout * silu'(z); once a step is done, du, ddelta, dz
  float* b;             // (TILE_TOKENS, PADDED_STATES)
  float* c;             // (TILE_TOKENS, PADDED_STATES)
  float* delta_bias;    // (CHANNELS)
  float* skip;          // (CHANNELS): D
  float* dt_sum;        // (CHANNELS): sum of dt over a segment
  float* rate;          // OWN: A * log2(e)
  Element* fetched;     // (INPUTS, ROUNDS, BLOCK, VECTOR): u, delta, dout, z of the tile to come
  StatePack* fetched_states;   // its B and C
  float* fetched_checkpoint;   // OWN: the states before it
  float* before;        // (STEPS, OWN): the states before each step
  float* carry;         // OWN: a * g, handed from later tokens to earlier ones
  float* dA;            // OWN: since the last fold
  Float2* time_sums;    // (CHANNEL_GROUPS, BLOCK): dD and ddelta_bias since the last fold
  float* channel_sums;  // (WARPS, SUM_TOKENS, 2, PADDED_STATES): dB and dC over one warp's channels
};
__device__ __forceinline__ Tile shared_tile() {
  float* next = reinterpret_cast<float*>(shared_memory());
  Tile tile;
  // What ssm_pack_bwd_checkpoints needs comes first, up to the first of the STEPS: it is launched with no more than that.
  tile.tokens = reinterpret_cast<Float4*>(take_floats(next, TILE_TOKENS * COLUMNS * 4));
  tile.b = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.c = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.delta_bias = take_floats(next, CHANNELS);
  tile.skip = take_floats(next, CHANNELS);
#if HAS_SEGMENTS
  tile.dt_sum = take_floats(next, CHANNELS);
#endif
  tile.rate = take_floats(next, OWN);
  tile.fetched = take_elements(next, INPUTS * FETCHED);
  tile.fetched_states = reinterpret_cast<StatePack*>(take_elements(next, FETCHED_STATES));
  tile.before = take_floats(next, STEPS * OWN);
  tile.fetched_checkpoint = take_floats(next, OWN);
  tile.carry = take_floats(next, OWN);
  tile.dA = take_floats(next, OWN);
  tile.time_sums = reinterpret_cast<Float2*>(take_floats(next, CHANNEL_GROUPS * BLOCK * 2));
  tile.channel_sums = take_floats(next, WARPS * SUM_TOKENS * 2 * PADDED_STATES);
  return tile;
}

// Where a thread keeps the STATES values of its turn `turn` in an array of OWN.
__device__ __forceinline__ int own_place(int turn) { return (turn * BLOCK + int(threadIdx.x)) * STATES; }

// The channel, inside the block, that a thread takes in its turn `turn`.
__device__ __forceinline__ int channel_of_turn(int turn) {
  return (int(threadIdx.x) / 32 * CHANNEL_GROUPS + turn) * WARP_CHANNELS + warp_channel();
}

__device__ __forceinline__ int64 state_place(const SsmArguments& args, const SequenceItem& item, int64 channel) {
  return (int64(item.slot) * args.dim + channel) * D_STATE;
}

// The states before the tile at `base`, for all turns: fetched from the checkpoint, or how the sequence begins.
__device__ __forceinline__ void fetch_checkpoint(const SsmArguments& args, const Segment& segment, int base,
                                                 const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    if (channel >= range.end) break;
    const float* from = checkpoint_place(args, segment, segment.offset + base, INTERVAL, channel) + state_lane() * STATES;
    float* to = tile.fetched_checkpoint + own_place(turn);
    constexpr int PACK = STATES % 4 == 0 && PADDED_STATES == D_STATE ? 4 : 1;
#pragma unroll
    for (int s = 0; s < STATES; s += PACK) {
      if (state_lane() * STATES + s < D_STATE) fetch<PACK * sizeof(float)>(to + s, from + s);
    }
  }
}
__device__ __forceinline__ void stage_states_before(const SsmArguments& args, const Segment& segment, int base,
                                                    const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float h[STATES] = {};
    if (segment.offset + base > 0) {
      if (channel < range.end) load_floats(tile.fetched_checkpoint + own_place(turn), h);
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        if (state_lane() * STATES + s >= D_STATE) h[s] = 0.0f;
      }
    } else {
#if HAS_INITIAL_STATES
      load_states(args.initial_states + state_place(args, segment.item, channel), channel < range.end, h);
#endif
    }
    store_floats(tile.before + own_place(turn), h);
  }
}

// The decay rates of all turns, kept for all sequences.
__device__ __forceinline__ void stage_rates(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float rate[STATES];
    load_decay_rates(args, channel, channel < range.end, state_lane(), rate);
    store_floats(tile.rate + own_place(turn), rate);
  }
}

// Inputs of a tile's tokens, elementwise; nothing but zeros where there is no token or channel. Running the states needs dt and
// u only; going back also needs dy = dout * silu(z) and, for dz, dout * silu'(z).
template <bool BACKWARD>
__device__ __forceinline__ void fetch_inputs(const SsmArguments& args, const SequenceItem& item, int base,
                                             const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (place.token >= TILE_TOKENS || base + place.token >= item.length || channel >= range.end) continue;
    Element* to = tile.fetched + (round * BLOCK + threadIdx.x) * VECTOR;
    constexpr int BYTES = VECTOR * sizeof(Element);
    fetch<BYTES>(to, element_at(args.u, item.row, token, channel));
    fetch<BYTES>(to + FETCHED, element_at(args.delta, item.row, token, channel));
    if constexpr (BACKWARD) {
      fetch<BYTES>(to + 2 * FETCHED, element_at(args.dout, item.row, token, channel));
#if HAS_Z
      fetch<BYTES>(to + 3 * FETCHED, element_at(args.z, item.row, token, channel));
#endif
    }
  }
}
template <bool BACKWARD>
__device__ __forceinline__ void stage_inputs(const SequenceItem& item, int base, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    if (RAGGED && place.token >= TILE_TOKENS) break;
    float u[VECTOR] = {}, dt[VECTOR] = {}, dy[VECTOR] = {}, gate[VECTOR] = {};
    if (base + place.token < item.length && range.begin + place.channel < range.end) {
      const Element* from = tile.fetched + (round * BLOCK + threadIdx.x) * VECTOR;
      load_pack(from, u);
      load_pack(from + FETCHED, dt);
      if constexpr (BACKWARD) {
        load_pack(from + 2 * FETCHED, dy);
#if HAS_Z
        load_pack(from + 3 * FETCHED, gate);
#endif
      }
      float bias[VECTOR];
      load_floats(tile.delta_bias + place.channel, bias);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        dt[v] = step_size(dt[v] + bias[v]);
#if HAS_Z
        if constexpr (BACKWARD) {
          float z = gate[v], s = sigmoid(z);
          gate[v] = dy[v] * silu_derivative(z, s);
          dy[v] *= z * s;
        }
#endif
      }
    }
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      tile.tokens[place.token * COLUMNS + column_of(place.channel + v)] = {dt[v], u[v], dy[v], gate[v]};
    }
  }
}

// Runs a channel's states through TOKENS tokens of the tile.
template <int TOKENS>
__device__ __forceinline__ void run_states(const Tile& tile, int first, int column, const float (&rate)[STATES],
                                           float (&h)[STATES]) {
#pragma unroll
  for (int j = 0; j < TOKENS; ++j) {
    Float4 token = tile.tokens[(first + j) * COLUMNS + column];
    float dt = token.x, dt_u = token.x * token.y;
    float b[STATES];
    load_floats(tile.b + (first + j) * PADDED_STATES + state_lane() * STATES, b);
#pragma unroll
    for (int s = 0; s < STATES; ++s) h[s] = fused_multiply_add(exp2_flush(dt * rate[s]), h[s], dt_u * b[s]);
  }
}
// The same for the whole tile and all turns, with the states in tile.before.
__device__ __forceinline__ void run_tile(const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    float rate[STATES], h[STATES];
    load_floats(tile.rate + own_place(turn), rate);
    load_floats(tile.before + own_place(turn), h);
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      run_states<STEP_TOKENS>(tile, step * STEP_TOKENS, column_of(channel_of_turn(turn)), rate, h);
    }
    store_floats(tile.before + own_place(turn), h);
  }
}

// Runs the states of the tiles before token `stop` of a segment, a multiple of TILE_TOKENS, from those in tile.before. Calls
// each_tile(base) when the tile at `base` is staged, and after_tile(next) when tile.before holds the states before token `next`.
template <typename EachTile, typename AfterTile>
__device__ __forceinline__ void run_forward(const SsmArguments& args, const SequenceItem& item, int stop,
                                            const ChannelRange& range, const Tile& tile, EachTile each_tile,
                                            AfterTile after_tile) {
  if (stop > 0) {
    fetch_inputs<false>(args, item, 0, range, tile);
    fetch_b_and_c(args, item, 0, range.group, tile.fetched_states);
  }
  for (int base = 0; base < stop; base += TILE_TOKENS) {
    wait_fetched();
    sync_block();  // the tile before is done with
    stage_inputs<false>(item, base, range, tile);
    stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
    if (base + TILE_TOKENS < stop) {
      fetch_inputs<false>(args, item, base + TILE_TOKENS, range, tile);
      fetch_b_and_c(args, item, base + TILE_TOKENS, range.group, tile.fetched_states);
    }
    sync_block();
    each_tile();
    run_tile(tile);
    after_tile(base + TILE_TOKENS);
  }
}

// The channels of a block, one range after another: stages what is kept for all sequences, then calls run(range, segment) for
// each item of the block.
template <typename Run>
__device__ __forceinline__ void for_each_segment(const SsmArguments& args, const Tile& tile, Run run) {
  for (ChannelRange range = block_channels(args, CHANNELS); range.begin < range.end; range = next_channels(args, CHANNELS, range)) {
    sync_block();  // the channels before are done with
    stage_rates(args, range, tile);
    stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
    sync_block();
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      run(range, segment_of(args, args.items[index]));
    }
  }
}

#if HAS_CHECKPOINTS
static_assert(INTERVAL == CHECKPOINT_INTERVAL, "the forward stores checkpoints elsewhere");
#else
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  Tile tile = shared_tile();
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || segment.offset + item.length <= INTERVAL) return;
    auto store = [&](int next) {
      if (next % INTERVAL != 0) return;
#pragma unroll 1
      for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
        int64 channel = range.begin + channel_of_turn(turn);
        float h[STATES];
        load_floats(tile.before + own_place(turn), h);
        store_aligned_states(checkpoint_place(args, segment, segment.offset + next, INTERVAL, channel), channel < range.end, h);
      }
    };
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
      int64 channel = range.begin + channel_of_turn(turn);
      float h[STATES] = {};
#if HAS_INITIAL_STATES
      load_states(args.initial_states + state_place(args, item, channel), channel < range.end, h);
#endif
#if HAS_SEGMENTS
      if (segment.offset > 0) {
        load_states(boundary_states(args, args.segment_states, segment, segment.offset, channel), channel < range.end, h);
      }
#endif
      store_floats(tile.before + own_place(turn), h);
    }
    if (segment.offset > 0) store(0);
    int last = (item.length - 1) / INTERVAL * INTERVAL;
    run_forward(args, item, last, range, tile, [] {}, store);
  });
}
#endif

#if HAS_SEGMENTS
// The sum of dt over the tile, added to tile.dt_sum.
__device__ __forceinline__ void add_dt(const Tile& tile) {
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
    float sum = tile.dt_sum[k];
    for (int t = 0; t < TILE_TOKENS; ++t) sum += tile.tokens[t * COLUMNS + column_of(k)].x;
    tile.dt_sum[k] = sum;
  }
}
__device__ __forceinline__ void clear_own(float* own) {
  float zero[STATES] = {};
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) store_floats(own + own_place(turn), zero);
}
__device__ __forceinline__ void store_boundary(const SsmArguments& args, float* states, const Segment& segment, int at,
                                               const ChannelRange& range, const float* own) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float h[STATES];
    load_floats(own + own_place(turn), h);
    store_aligned_states(boundary_states(args, states, segment, at, channel), channel < range.end, h);
  }
}
__device__ __forceinline__ void store_dt(const SsmArguments& args, const Segment& segment, const ChannelRange& range,
                                         const Tile& tile) {
  int next = segment.offset + segment.item.length;
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
    if (range.begin + k < range.end) *boundary_dt(args, segment, next, range.begin + k) = tile.dt_sum[k];
    tile.dt_sum[k] = 0.0f;
  }
}

#if HAS_CHECKPOINTS
#else
// Segments from zero, forward: their states at the end, and the sum of dt.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_segments(const SsmArguments args) {
  Tile tile = shared_tile();
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || !segment.goes_on) return;
    clear_own(tile.before);
    run_forward(args, item, item.length, range, tile, [&] { add_dt(tile); }, [](int) {});
    store_boundary(args, args.segment_states, segment, segment.offset + item.length, range, tile.before);
    store_dt(args, segment, range, tile);
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

// Segments backward, as if nothing came after: a * g before the first token; and the sum of dt, where it is not known yet.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_gradient_segments(const SsmArguments args) {
  Tile tile = shared_tile();
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || segment.offset == 0) return;
    clear_own(tile.carry);
#if HAS_FINAL_STATES
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS && !segment.goes_on; ++turn) {
      int64 channel = range.begin + channel_of_turn(turn);
      float carry[STATES];
      load_states(args.dfinal_states + state_place(args, item, channel), channel < range.end, carry);
      store_floats(tile.carry + own_place(turn), carry);
    }
#endif
    int base = (item.length - 1) / TILE_TOKENS * TILE_TOKENS;
    fetch_inputs<true>(args, item, base, range, tile);
    fetch_b_and_c(args, item, base, range.group, tile.fetched_states);
    for (; base >= 0; base -= TILE_TOKENS) {
      wait_fetched();
      sync_block();  // the tile before is done with
      stage_inputs<true>(item, base, range, tile);
      stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
      if (base > 0) {
        fetch_inputs<true>(args, item, base - TILE_TOKENS, range, tile);
        fetch_b_and_c(args, item, base - TILE_TOKENS, range.group, tile.fetched_states);
      }
      sync_block();
#if HAS_CHECKPOINTS
      add_dt(tile);
#endif
#pragma unroll 1
      for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
        const Float4* tokens = tile.tokens + column_of(channel_of_turn(turn));
        float rate[STATES], carry[STATES];
        load_floats(tile.rate + own_place(turn), rate);
        load_floats(tile.carry + own_place(turn), carry);
#pragma unroll 4
        for (int t = TILE_TOKENS - 1; t >= 0; --t) {
          Float4 token = tokens[t * COLUMNS];
          float dt = token.x, dy = token.z, c[STATES];
          load_floats(tile.c + t * PADDED_STATES + state_lane() * STATES, c);
#pragma unroll
          for (int s = 0; s < STATES; ++s) carry[s] = exp2_flush(dt * rate[s]) * fused_multiply_add(dy, c[s], carry[s]);
        }
        store_floats(tile.carry + own_place(turn), carry);
      }
    }
    store_boundary(args, args.segment_gradients, segment, segment.offset, range, tile.carry);
#if HAS_CHECKPOINTS
    if (segment.goes_on) store_dt(args, segment, range, tile);
    for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
#endif
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_gradient_boundaries(const SsmArguments args) {
  walk_boundaries<false>(args, args.segment_gradients);
}
#endif

// The states before each step of the tile, from those before the first.
__device__ __forceinline__ void run_states_to_steps(const Tile& tile) {
  if constexpr (STEPS > 1) {
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
      float rate[STATES], h[STATES];
      load_floats(tile.rate + own_place(turn), rate);
      load_floats(tile.before + own_place(turn), h);
#pragma unroll 1
      for (int step = 0; step < STEPS - 1; ++step) {
        run_states<STEP_TOKENS>(tile, step * STEP_TOKENS, column_of(channel_of_turn(turn)), rate, h);
        store_floats(tile.before + (step + 1) * OWN + own_place(turn), h);
      }
    }
  }
}

// One step of one turn: from the states before it through its tokens, then back.
__device__ __forceinline__ void run_back(const Tile& tile, int step, int turn, ChannelSums& sums) {
  int own = channel_of_turn(turn), column = column_of(own);
  const Float4* tokens = tile.tokens + step * STEP_TOKENS * COLUMNS + column;
  const float* b_of_step = tile.b + step * STEP_TOKENS * PADDED_STATES + state_lane() * STATES;
  const float* c_of_step = tile.c + step * STEP_TOKENS * PADDED_STATES + state_lane() * STATES;
  float rate[STATES], before[STATES];
  load_floats(tile.rate + own_place(turn), rate);
  load_floats(tile.before + step * OWN + own_place(turn), before);

  float h[STEP_TOKENS][STATES], decay[STEP_TOKENS][STATES];
#pragma unroll
  for (int j = 0; j < STEP_TOKENS; ++j) {
    Float4 token = tokens[j * COLUMNS];
    float dt = token.x, dt_u = token.x * token.y, b[STATES];
    load_floats(b_of_step + j * PADDED_STATES, b);
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      decay[j][s] = exp2_flush(dt * rate[s]);
      h[j][s] = fused_multiply_add(decay[j][s], j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s], dt_u * b[s]);
    }
  }

  // Sums over the states of this lane: g * B, g * A * a * h[t-1] and C * h.
  float g_b[STEP_TOKENS], g_a_h[STEP_TOKENS], c_h[STEP_TOKENS];
  float carry[STATES], dA[STATES];
  load_floats(tile.carry + own_place(turn), carry);
  load_floats(tile.dA + own_place(turn), dA);
#pragma unroll
  for (int j = STEP_TOKENS - 1; j >= 0; --j) {
    Float4 token = tokens[j * COLUMNS];
    float dt = token.x, dt_u = token.x * token.y, dy = token.z, b[STATES], c[STATES], g[STATES];
    load_floats(b_of_step + j * PADDED_STATES, b);
    load_floats(c_of_step + j * PADDED_STATES, c);
    g_b[j] = g_a_h[j] = c_h[j] = 0.0f;
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      g[s] = fused_multiply_add(dy, c[s], carry[s]);
      carry[s] = g[s] * decay[j][s];
      float g_a_before = carry[s] * (j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s]);
      dA[s] = fused_multiply_add(g_a_before, dt, dA[s]);
      g_b[j] = fused_multiply_add(g[s], b[s], g_b[j]);
      g_a_h[j] = fused_multiply_add(g_a_before, rate[s], g_a_h[j]);
#if HAS_Z
      c_h[j] = fused_multiply_add(c[s], h[j][s], c_h[j]);
#endif
    }
    sums.add(j, g, dt_u, h[j], dy);
  }
  store_floats(tile.carry + own_place(turn), carry);

  store_floats(tile.dA + own_place(turn), dA);

  // The lanes of the channel divide the step's tokens between them, and put results where the inputs were.
  ChannelSum<STEP_TOKENS> mine(g_b, state_lane()), also_a(g_a_h, state_lane());
#if HAS_Z
  ChannelSum<STEP_TOKENS> also_c(c_h, state_lane());
#endif
  sync_warp();  // every lane has read the inputs
  if (mine.owner) {
    Float2 recent = tile.time_sums[turn * BLOCK + threadIdx.x];
    float skip = tile.skip[own];
#pragma unroll
    for (int j = 0; j < mine.kept; ++j) {
      Float4& place = tile.tokens[(step * STEP_TOKENS + mine.first + j) * COLUMNS + column];
      Float4 token = place;
      float dt = token.x, u = token.y, dy = token.z, gate = token.w;
      float du = fused_multiply_add(skip, dy, g_b[j] * dt);
      // The rates are in units of log2(e).
      float ddelta = fused_multiply_add(g_b[j], u, g_a_h[j] * LN_2);
#if HAS_SOFTPLUS
      ddelta *= softplus_derivative(dt);
#endif
      place = {du, ddelta, fused_multiply_add(skip, u, c_h[j]) * gate, 0.0f};
      recent.x = fused_multiply_add(dy, u, recent.x);
      recent.y += ddelta;
    }
    tile.time_sums[turn * BLOCK + threadIdx.x] = recent;
  }
}

// Sums over time, (item blocks, 2, dim, D_STATE + 2): dA, dD and ddelta_bias of a block's sequences, then what rounding has taken
// from them. The tile's sums over the last tokens are moved there, so that they are exact for any number of tokens.
__device__ __forceinline__ float* time_sums(const SsmArguments& args, int64 channel) {
  return args.partial_channels + (int64(blockIdx.y) * 2 * args.dim + channel) * (D_STATE + 2);
}
__device__ __forceinline__ void fold(float* place, int64 error_offset, float x) {
  CompensatedSum sum = {place[0], place[error_offset]};
  sum.add(x);
  place[0] = sum.sum;
  place[error_offset] = sum.error;
}
__device__ __forceinline__ void fold_time_sums(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
  int64 error_offset = args.dim * (D_STATE + 2);
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float dA[STATES], zero[STATES] = {};
    load_floats(tile.dA + own_place(turn), dA);
    store_floats(tile.dA + own_place(turn), zero);
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      int n = state_lane() * STATES + s;
      if (channel < range.end && n < D_STATE) fold(time_sums(args, channel) + n, error_offset, dA[s]);
    }
    // The first lane of a channel adds up what its lanes have.
    Float2* lanes = tile.time_sums + turn * BLOCK + threadIdx.x;
    sync_warp();
    if (state_lane() == 0) {
      Float2 sum = {0.0f, 0.0f};
      for (int lane = 0; lane < LANES; ++lane) {
        sum.x += lanes[lane * WARP_CHANNELS].x;
        sum.y += lanes[lane * WARP_CHANNELS].y;
      }
      if (channel < range.end) {
        fold(time_sums(args, channel) + D_STATE, error_offset, sum.x);
        fold(time_sums(args, channel) + D_STATE + 1, error_offset, sum.y);
      }
    }
    sync_warp();
    *lanes = {0.0f, 0.0f};
  }
}
__device__ __forceinline__ void clear_time_sums(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    float zero[STATES] = {};
    store_floats(tile.dA + own_place(turn), zero);
    tile.time_sums[turn * BLOCK + threadIdx.x] = {0.0f, 0.0f};
  }
  int64 floats = (range.end - range.begin) * (D_STATE + 2);
  for (int64 k = threadIdx.x; k < floats; k += BLOCK) {
    time_sums(args, range.begin)[k] = time_sums(args, args.dim + range.begin)[k] = 0.0f;
  }
}

// dB and dC of SUM_TOKENS tokens: the warps' sums, as partial sums of the block. A block that takes several ranges of channels adds them up.
__device__ __forceinline__ void write_b_and_c(const SsmArguments& args, const SequenceItem& item, int base,
                                              const ChannelRange& range, const Tile& tile, bool add) {
  constexpr unsigned PACKS = 2 * D_STATE / STATE_PACK;  // of a token: dB, then dC
  int64 token = item.row * args.seqlen + item.start + base;
  if (args.blocks_per_group > 1) token += int64(blockIdx.x % unsigned(args.blocks_per_group)) * args.batch * args.seqlen;
  float* partial = args.partial_bc + (token * args.groups + range.group) * 2 * D_STATE;
#pragma unroll 1
  for (unsigned k = threadIdx.x; k < SUM_TOKENS * PACKS; k += BLOCK) {
    int j = int(k / PACKS), column = int(k % PACKS * STATE_PACK);
    if (base + j >= item.length) break;
    int n = column % D_STATE, kind = column / D_STATE;
    const float* warp_sums = tile.channel_sums + (j * 2 + kind) * PADDED_STATES + n;
    float sum[STATE_PACK] = {}, more[STATE_PACK];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      load_floats(warp_sums + w * SUM_TOKENS * 2 * PADDED_STATES, more);
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) sum[i] += more[i];
    }
    float* place = partial + j * args.groups * 2 * D_STATE + column;
    if (add) {
      load_floats(place, more);
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) sum[i] += more[i];
    }
    store_global_floats(place, sum);
  }
}

// du, ddelta and dz of a tile's tokens, elementwise.
__device__ __forceinline__ void write_gradients(const SsmArguments& args, const SequenceItem& item, int base,
                                                const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    if (RAGGED && place.token >= TILE_TOKENS) break;
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (base + place.token >= item.length || channel >= range.end) continue;
    float du[VECTOR], ddelta[VECTOR], dz[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      Float4 result = tile.tokens[place.token * COLUMNS + column_of(place.channel + v)];
      du[v] = result.x;
      ddelta[v] = result.y;
      dz[v] = result.z;
    }
    store_pack(output_at(args.du, item.row, token, channel), du);
    store_pack(output_at(args.ddelta, item.row, token, channel), ddelta);
#if HAS_Z
    store_pack(output_at(args.dz, item.row, token, channel), dz);
#endif
  }
}

__device__ __forceinline__ void fetch_tile(const SsmArguments& args, const Segment& segment, int base,
                                           const ChannelRange& range, const Tile& tile) {
  fetch_inputs<true>(args, segment.item, base, range, tile);
  fetch_b_and_c(args, segment.item, base, range.group, tile.fetched_states);
  if (segment.offset + base > 0 && base % INTERVAL == 0) fetch_checkpoint(args, segment, base, range, tile);
}

// One sequence or segment, tile by tile from its end. Before a tile that no checkpoint precedes come those between the two, forward. A thread
// stages inputs where it alone has taken results from, so what remains to wait for is that inputs are there, and results.
__device__ __forceinline__ void run_sequence(const SsmArguments& args, const Segment& segment, const ChannelRange& range,
                                             const Tile& tile, int& not_folded, bool add) {
  const SequenceItem& item = segment.item;
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    float carry[STATES] = {};
#if HAS_FINAL_STATES || HAS_SEGMENTS
    int64 channel = range.begin + channel_of_turn(turn);
    bool exists = channel < range.end;
#endif
#if HAS_FINAL_STATES
    if (!segment.goes_on) load_states(args.dfinal_states + state_place(args, item, channel), exists, carry);
#endif
#if HAS_SEGMENTS
    int next = segment.offset + item.length;
    if (segment.goes_on) load_states(boundary_states(args, args.segment_gradients, segment, next, channel), exists, carry);
#endif
    store_floats(tile.carry + own_place(turn), carry);
  }
  int tiles = (item.length + TILE_TOKENS - 1) / TILE_TOKENS;
  int base = (tiles - 1) * TILE_TOKENS;  // of the tile to go back through
  int at = base / INTERVAL * INTERVAL;   // of the tile that is next
  if (tiles > 0) fetch_tile(args, segment, at, range, tile);
  while (base >= 0) {
    bool back = CHECKPOINT_TILES == 1 || at == base;
    int next_base = back ? base - TILE_TOKENS : base;
    int next_at = back ? next_base / INTERVAL * INTERVAL : at + TILE_TOKENS;
    wait_fetched();
    if (at % INTERVAL == 0) stage_states_before(args, segment, at, range, tile);
    stage_inputs<true>(item, at, range, tile);
    stage_b_and_c(item, at, tile.fetched_states, tile.b, tile.c);
    if (next_base >= 0) fetch_tile(args, segment, next_at, range, tile);
    sync_block();
    if (back) {
      run_states_to_steps(tile);
#pragma unroll 1
      for (int step = STEPS - 1; step >= 0; --step) {
        ChannelSums sums;
#pragma unroll 1
        for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) run_back(tile, step, turn, sums);
        int first = step * STEP_TOKENS % SUM_TOKENS;
        sums.store(tile.channel_sums + (int(threadIdx.x) / 32 * SUM_TOKENS + first) * 2 * PADDED_STATES);
        if (first > 0) continue;
        sync_block();
        write_b_and_c(args, item, base + step * STEP_TOKENS, range, tile, add);
        if constexpr (SUM_TOKENS < TILE_TOKENS) sync_block();  // the sums have been read
      }
      write_gradients(args, item, base, range, tile);
      not_folded += TILE_TOKENS;
      if (not_folded >= FOLD_TOKENS) {
        fold_time_sums(args, range, tile);
        not_folded = 0;
      }
    } else {
      run_tile(tile);
      sync_block();  // its inputs have been read
    }
    base = next_base;
    at = next_at;
  }
#if HAS_INITIAL_STATES
  if (segment.offset > 0) return;
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float carry[STATES];
    load_floats(tile.carry + own_place(turn), carry);
    store_states(args.dinitial_states + state_place(args, item, channel), channel < range.end, carry);
  }
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange first = block_channels(args, CHANNELS);
  for (ChannelRange range = first; range.begin < range.end; range = next_channels(args, CHANNELS, range)) {
    sync_block();  // the channels before are done with
    clear_time_sums(args, range, tile);
    stage_rates(args, range, tile);
    stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
    sync_block();
    int not_folded = 0;  // tokens
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      SequenceItem item = args.items[index];
      if (item.slot < 0) {
        write_zeros(args.du, item, range, CHANNELS);
        write_zeros(args.ddelta, item, range, CHANNELS);
#if HAS_Z
        write_zeros(args.dz, item, range, CHANNELS);
#endif
        continue;
      }
      run_sequence(args, segment_of(args, item), range, tile, not_folded, range.begin > first.begin);
    }
    fold_time_sums(args, range, tile);
  }
}

// dB and dC: the channel blocks' partial sums, first block first. Padding tokens have none and get 0.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_bc(const SsmArguments args) {
  int64 tokens = args.batch * args.seqlen;
  int64 sums = tokens * args.groups * 2 * D_STATE;
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= sums) return;
  int64 column = index % (2 * D_STATE);
  int64 group = index / (2 * D_STATE) % args.groups;
  int64 place = index / (2 * D_STATE) / args.groups;
  CompensatedSum sum = {0.0f, 0.0f};
  if (args.run_index[place] >= 0) {
    for (int64 block = 0; block < args.blocks_per_group; ++block) sum.add(args.partial_bc[block * sums + index]);
  }
  const View4& view = column < D_STATE ? args.dB : args.dC;
  int64 row = place / args.seqlen, token = place % args.seqlen;
  static_cast<Element*>(view.data)[row * view.batch + token * view.token + group * view.group +
                                   column % D_STATE * view.state] = from_float(sum.sum);
}

// dA, dD and ddelta_bias: the item blocks' partial sums, first block first.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_channels(const SsmArguments args) {
  int64 sums = args.dim * (D_STATE + 2);
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= sums) return;
  CompensatedSum sum = {0.0f, 0.0f};
  for (int64 block = 0; block < args.item_blocks; ++block) sum.add(args.partial_channels[2 * block * sums + index]);
  int64 channel = index / (D_STATE + 2), column = index % (D_STATE + 2);
  if (column < D_STATE) {
    args.dA[channel * D_STATE + column] = sum.sum;
  } else if (column == D_STATE) {
#if HAS_D
    args.dD[channel] = sum.sum;
#endif
  } else {
#if HAS_DELTA_BIAS
    args.ddelta_bias[channel] = sum.sum;
#endif
  }
}
