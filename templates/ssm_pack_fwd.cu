// The selective scan of packed sequences, forward. For each sequence, channel and state n:
//
//   dt   = softplus(delta[t] + delta_bias)
//   h[t] = exp(dt * A[n]) * h[t-1] + dt * B[t,n] * u[t]      h[-1] = the initial state, or 0
//   y[t] = sum over n of C[t,n] * h[t] + D * u[t]
//   out[t] = y[t] * silu(z[t])
//
// A packed batch is parallel over sequences, so no scan operator is needed inside one: a block takes CHANNELS channels of one
// sequence and walks its tokens. LANES neighbouring threads share a channel, STATES states each in registers. For each
// tile of tokens the block computes dt and dt * u once per token and channel and stages them, with B and C, in shared
// memory; every lane then steps through the tile; the lanes' shares of y are summed; D, the gate and the store follow
// with the threads laid out along memory again.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/lane_sum.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_tile.cuh"

constexpr int CHANNELS = BLOCK / LANES;                          // of a block
constexpr int SUM_TOKENS = TILE_TOKENS < 8 ? TILE_TOKENS : 8;    // tokens whose y is summed over lanes together

// A tile in shared memory.
struct Tile {
  float* dt;          // (TILE_TOKENS, CHANNELS)
  float* dt_u;        // (TILE_TOKENS, CHANNELS)
  float* y;           // (TILE_TOKENS, CHANNELS): sum over the states
  float* b;           // (TILE_TOKENS, PADDED_STATES)
  float* c;           // (TILE_TOKENS, PADDED_STATES)
  float* delta_bias;  // (CHANNELS)
  float* skip;        // (CHANNELS): D
};
__device__ __forceinline__ Tile shared_tile() {
  float* next = reinterpret_cast<float*>(shared_memory());
  Tile tile;
  tile.dt = take_floats(next, TILE_TOKENS * CHANNELS);
  tile.dt_u = take_floats(next, TILE_TOKENS * CHANNELS);
  tile.y = take_floats(next, TILE_TOKENS * CHANNELS);
  tile.b = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.c = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.delta_bias = take_floats(next, CHANNELS);
  tile.skip = take_floats(next, CHANNELS);
  return tile;
}

// dt and dt * u of a tile's tokens; 0 where there is no token or channel.
__device__ __forceinline__ void stage_inputs(const SsmArguments& args, const SequenceItem& item, int base,
                                             const ChannelRange& range, const Tile& tile) {
  for (int k = threadIdx.x; k < TILE_TOKENS * CHANNELS / VECTOR; k += BLOCK) {
    TilePlace place = tile_place(k, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    float dt[VECTOR] = {}, dt_u[VECTOR] = {};
    if (base + place.token < item.length && channel < range.end) {
      float bias[VECTOR];
      load_pack(element_at(args.u, item.row, token, channel), dt_u);
      load_pack(element_at(args.delta, item.row, token, channel), dt);
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
  for (int k = threadIdx.x; k < TILE_TOKENS * CHANNELS / VECTOR; k += BLOCK) {
    TilePlace place = tile_place(k, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (base + place.token >= item.length || channel >= range.end) continue;
    float y[VECTOR];
    load_floats(tile.y + place.token * CHANNELS + place.channel, y);
#if HAS_D
    float u[VECTOR], skip[VECTOR];
    load_pack(element_at(args.u, item.row, token, channel), u);
    load_floats(tile.skip + place.channel, skip);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y[v] = fused_multiply_add(skip[v], u[v], y[v]);
#endif
#if HAS_Z
    float z[VECTOR];
    load_pack(element_at(args.z, item.row, token, channel), z);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y[v] *= silu(z[v]);
#endif
    store_pack(output_at(args.out, item.row, token, channel), y);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange range = block_channels(args, CHANNELS);
  int lane = threadIdx.x % LANES, own = threadIdx.x / LANES;
  int64 channel = range.begin + own;
  bool exists = channel < range.end;
  float rate[STATES];
  load_decay_rates(args, channel, exists, lane, rate);
  stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);

  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) {
      write_zeros(args.out, item, range, CHANNELS);
      continue;
    }
#if HAS_INITIAL_STATES || HAS_FINAL_STATES
    int64 state = (int64(item.slot) * args.dim + channel) * D_STATE + lane * STATES;
#endif
    float h[STATES];
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      h[s] = 0.0f;
#if HAS_INITIAL_STATES
      if (exists && lane * STATES + s < D_STATE) h[s] = args.initial_states[state + s];
#endif
    }

    for (int base = 0; base < item.length; base += TILE_TOKENS) {
      sync_block();  // the tile before has been read, the parameters are there
      stage_inputs(args, item, base, range, tile);
      stage_b_and_c(args, item, base, range.group, tile.b, tile.c);
      sync_block();
#pragma unroll 1
      for (int first = 0; first < TILE_TOKENS; first += SUM_TOKENS) {
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
#pragma unroll
        for (int j = 0; j < ChannelSum<SUM_TOKENS>::kept; ++j) {
          if (sum.owner) tile.y[(first + sum.first + j) * CHANNELS + own] = y[j];
        }
      }
      sync_block();
      write_outputs(args, item, base, range, tile);
    }
#if HAS_FINAL_STATES
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      if (exists && lane * STATES + s < D_STATE) args.final_states[state + s] = h[s];
    }
#endif
  }
}
