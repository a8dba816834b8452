#pragma once
#include "channel_sums.cuh"
#include "ssm_segments.cuh"
#include "ssm_tile.cuh"
// The tile of tokens that the kernels of ssm_pack_bwd keep in shared memory: how it is laid out, filled and run through forward.
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
    if (RAGGED && round * BLOCK + int(threadIdx.x) >= TILE_TOKENS * CHANNELS / VECTOR) break;
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
