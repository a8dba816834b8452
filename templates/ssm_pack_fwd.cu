// The selective scan of packed sequences, forward. For each sequence, channel and state n:
//
//   dt   = softplus(delta[t] + delta_bias)
//   h[t] = exp(dt * A[n]) * h[t-1] + dt * B[t,n] * u[t]      h[-1] = the initial state, or 0
//   y[t] = sum over n of C[t,n] * h[t] + D * u[t]
//   out[t] = y[t] * silu(z[t])
//
// A packed batch is parallel over sequences, so no scan operator is needed inside one: a block takes CHANNELS channels of one
// sequence and walks its tokens. LANES threads of a warp share a channel, STATES states each in registers. For each
// tile of tokens the block computes dt and dt * u once per token and channel and stages them, with B and C, in shared
// memory; every lane then steps through the tile; the lanes' shares of y are summed; D, the gate and the store follow
// with the threads laid out along memory again. Inputs of the next tile are on their way meanwhile. A long sequence can be cut in
// segments (segments on), see device/ssm_segments.cuh.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/lane_sum.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_tile.cuh"
#include "device/ssm_segments.cuh"

constexpr int CHANNELS = BLOCK / LANES;                          // of a block
constexpr int SUM_TOKENS = TILE_TOKENS < 8 ? TILE_TOKENS : 8;    // tokens whose y is summed over lanes together
// The elementwise passes over a tile: how often each thread takes VECTOR channels of a token, and whether some do not the last time.
constexpr int ROUNDS = (TILE_TOKENS * CHANNELS / VECTOR + BLOCK - 1) / BLOCK;
constexpr bool RAGGED = TILE_TOKENS * CHANNELS / VECTOR % BLOCK != 0;
constexpr int FETCHED = ROUNDS * BLOCK * VECTOR;  // elements that the block fetches of each input
#if HAS_Z
constexpr int INPUTS = 3;  // activations: u, delta, z
#else
constexpr int INPUTS = 2;
#endif

// A tile in shared memory.
struct Tile {
  float* dt;           // (TILE_TOKENS, CHANNELS)
  float* dt_u;         // (TILE_TOKENS, CHANNELS); then y, the sum over the states, in its place
  float* b;            // (TILE_TOKENS, PADDED_STATES)
  float* c;            // (TILE_TOKENS, PADDED_STATES)
  float* delta_bias;   // (CHANNELS)
  float* skip;         // (CHANNELS): D
  Element* fetched;    // (2, INPUTS, ROUNDS, BLOCK, VECTOR): u, delta, z of the present tile and of the one to come, in turn
  StatePack* fetched_states;  // B and C of the one to come
};
__device__ __forceinline__ Tile shared_tile() {
  float* next = reinterpret_cast<float*>(shared_memory());
  Tile tile;
  tile.dt = take_floats(next, TILE_TOKENS * CHANNELS);
  tile.dt_u = take_floats(next, TILE_TOKENS * CHANNELS);
  tile.b = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.c = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.delta_bias = take_floats(next, CHANNELS);
  tile.skip = take_floats(next, CHANNELS);
  tile.fetched = take_elements(next, 2 * INPUTS * FETCHED);
  tile.fetched_states = reinterpret_cast<StatePack*>(take_elements(next, FETCHED_STATES));
  return tile;
}

// The thread's channel inside the block.
__device__ __forceinline__ int own_channel() { return int(threadIdx.x) / 32 * WARP_CHANNELS + warp_channel(); }

// Where a thread keeps the inputs of round `round` that it has fetched for the tile at `base`.
__device__ __forceinline__ Element* fetched_inputs(const Tile& tile, int base, int round) {
  return tile.fetched + base / TILE_TOKENS % 2 * (INPUTS * FETCHED) + (round * BLOCK + int(threadIdx.x)) * VECTOR;
}

template <bool OUTPUTS>
__device__ __forceinline__ void fetch_tile(const SsmArguments& args, const SequenceItem& item, int base,
                                           const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (place.token >= TILE_TOKENS || base + place.token >= item.length || channel >= range.end) continue;
    Element* to = fetched_inputs(tile, base, round);
    constexpr int BYTES = VECTOR * sizeof(Element);
    fetch<BYTES>(to, element_at(args.u, item.row, token, channel));
    fetch<BYTES>(to + FETCHED, element_at(args.delta, item.row, token, channel));
#if HAS_Z
    if constexpr (OUTPUTS) fetch<BYTES>(to + 2 * FETCHED, element_at(args.z, item.row, token, channel));
#endif
  }
  fetch_b_and_c(args, item, base, range.group, tile.fetched_states);
}

// dt and dt * u of a tile's tokens; 0 where there is no token or channel.
__device__ __forceinline__ void stage_inputs(const SequenceItem& item, int base, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    if (RAGGED && round * BLOCK + int(threadIdx.x) >= TILE_TOKENS * CHANNELS / VECTOR) break;
    float dt[VECTOR] = {}, dt_u[VECTOR] = {};
    if (base + place.token < item.length && range.begin + place.channel < range.end) {
      const Element* from = fetched_inputs(tile, base, round);
      float bias[VECTOR];
      load_pack(from, dt_u);
      load_pack(from + FETCHED, dt);
      load_floats(tile.delta_bias + place.channel, bias);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        dt[v] = step_size(dt[v] + bias[v]);
        dt_u[v] *= dt[v];
      }
    }
    store_floats(tile.dt + place.token * CHANNELS + place.channel, dt);
    store_floats(tile.dt_u + place.token * CHANNELS + place.channel, dt_u);
  }
}

// out = (y + D * u) * silu(z)
__device__ __forceinline__ void write_outputs(const SsmArguments& args, const SequenceItem& item, int base,
                                              const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (place.token >= TILE_TOKENS || base + place.token >= item.length || channel >= range.end) continue;
    float y[VECTOR];
    load_floats(tile.dt_u + place.token * CHANNELS + place.channel, y);
#if HAS_D
    float u[VECTOR], skip[VECTOR];
    load_pack(fetched_inputs(tile, base, round), u);
    load_floats(tile.skip + place.channel, skip);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y[v] = fused_multiply_add(skip[v], u[v], y[v]);
#endif
#if HAS_Z
    float z[VECTOR];
    load_pack(fetched_inputs(tile, base, round) + 2 * FETCHED, z);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y[v] *= silu(z[v]);
#endif
    store_pack(output_at(args.out, item.row, token, channel), y);
  }
}

#if HAS_SEGMENTS
// Segments from zero: their states at the end, and the sum of dt.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd_segments(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange range = block_channels(args, CHANNELS);
  int own = own_channel();
  int64 channel = range.begin + own;
  bool exists = channel < range.end;
  float rate[STATES];
  load_decay_rates(args, channel, exists, state_lane(), rate);
  stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
  sync_block();
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    Segment segment = segment_of(args, args.items[index]);
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || !segment.goes_on) continue;
    float h[STATES] = {}, dt_sum = 0.0f;
    fetch_tile<false>(args, item, 0, range, tile);
    for (int base = 0; base < item.length; base += TILE_TOKENS) {
      wait_fetched();
      stage_inputs(item, base, range, tile);
      stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
      if (base + TILE_TOKENS < item.length) fetch_tile<false>(args, item, base + TILE_TOKENS, range, tile);
      sync_block();
#pragma unroll 8
      for (int t = 0; t < TILE_TOKENS; ++t) {
        float dt = tile.dt[t * CHANNELS + own], dt_u = tile.dt_u[t * CHANNELS + own], b[STATES];
        load_floats(tile.b + t * PADDED_STATES + state_lane() * STATES, b);
        dt_sum += dt;
#pragma unroll
        for (int s = 0; s < STATES; ++s) h[s] = fused_multiply_add(exp2_flush(dt * rate[s]), h[s], dt_u * b[s]);
      }
      sync_block();
    }
    int next = segment.offset + item.length;
    store_aligned_states(boundary_states(args, args.segment_states, segment, next, channel), exists, h);
    if (exists && state_lane() == 0) *boundary_dt(args, segment, next, channel) = dt_sum;
  }
}

extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_fwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange range = block_channels(args, CHANNELS);
  int lane = state_lane(), own = own_channel();
  int64 channel = range.begin + own;
  bool exists = channel < range.end;
  float rate[STATES];
  load_decay_rates(args, channel, exists, lane, rate);
  stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
  sync_block();

  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) {
      write_zeros(args.out, item, range, CHANNELS);
      continue;
    }
    Segment segment = segment_of(args, item);
    float h[STATES] = {};
#if HAS_SEGMENTS
    if (segment.offset > 0) {
      load_states(boundary_states(args, args.segment_states, segment, segment.offset, channel), exists, h);
    }
#endif
#if HAS_INITIAL_STATES || HAS_FINAL_STATES
    int64 state = (int64(item.slot) * args.dim + channel) * D_STATE;
#endif
#if HAS_INITIAL_STATES
    if (segment.offset == 0) load_states(args.initial_states + state, exists, h);
#endif

    // A thread stages inputs where it alone has taken y from, so what remains to wait for is that inputs are there, and y.
    if (item.length > 0) fetch_tile<true>(args, item, 0, range, tile);
    for (int base = 0; base < item.length; base += TILE_TOKENS) {
      wait_fetched();
      stage_inputs(item, base, range, tile);
      stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
      if (base + TILE_TOKENS < item.length) fetch_tile<true>(args, item, base + TILE_TOKENS, range, tile);
      sync_block();
#pragma unroll 1
      for (int first = 0; first < TILE_TOKENS; first += SUM_TOKENS) {
#if HAS_CHECKPOINTS
        int at = segment.offset + base + first;
        if (at > 0 && at % CHECKPOINT_INTERVAL == 0 && base + first < item.length) {
          store_aligned_states(checkpoint_place(args, segment, at, CHECKPOINT_INTERVAL, channel), exists, h);
        }
#endif
        float y[SUM_TOKENS];
#pragma unroll
        for (int j = 0; j < SUM_TOKENS; ++j) {
          int t = first + j;
          float dt = tile.dt[t * CHANNELS + own], dt_u = tile.dt_u[t * CHANNELS + own];
          float b[STATES], c[STATES];
          load_floats(tile.b + t * PADDED_STATES + lane * STATES, b);
          load_floats(tile.c + t * PADDED_STATES + lane * STATES, c);
          y[j] = 0.0f;
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            h[s] = fused_multiply_add(exp2_flush(dt * rate[s]), h[s], dt_u * b[s]);
            y[j] = fused_multiply_add(c[s], h[s], y[j]);
          }
        }
        ChannelSum<SUM_TOKENS> sum(y, lane);
        if constexpr (LANES > 1) sync_warp();  // every lane has read dt_u
#pragma unroll
        for (int j = 0; j < ChannelSum<SUM_TOKENS>::kept; ++j) {
          if (sum.owner) tile.dt_u[(first + sum.first + j) * CHANNELS + own] = y[j];
        }
      }
      sync_block();
      write_outputs(args, item, base, range, tile);
    }
#if HAS_FINAL_STATES
    if (!segment.goes_on) store_states(args.final_states + state, exists, h);
#endif
  }
}
