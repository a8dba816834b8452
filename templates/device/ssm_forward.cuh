#pragma once
#include "element_tile.cuh"
#include "lane_sum.cuh"
#include "math.cuh"
#include "ssm_segments.cuh"
#include "ssm_tile.cuh"
// Running the scan forward through the tokens of a sequence or segment, as ssm_pack_fwd.cu says: with outputs, or for the
// states alone.
constexpr int FORWARD_GROUP = TILE_TOKENS < 8 ? TILE_TOKENS : 8;  // tokens that the lanes of a channel share at a time

// A tile in shared memory. Each array has two places: one for the present tile, one for the next.
struct ForwardTile {
  Element* u;      // ROOM; then out in its place
  Element* delta;  // ROOM
  Element* z;      // ROOM
  float* b;        // (TILE_TOKENS, PADDED_STATES)
  float* c;        // (TILE_TOKENS, PADDED_STATES)
  StatePack* fetched_states;  // B and C as they are in memory; one place, it is emptied before it is filled
};
__device__ __forceinline__ ForwardTile forward_tile(int base) {
  float* next = reinterpret_cast<float*>(shared_memory());
  ForwardTile tile;
  tile.fetched_states = reinterpret_cast<StatePack*>(take_elements(next, FETCHED_STATES));
  int place = base / TILE_TOKENS % 2;
  Element* elements = take_elements(next, 2 * FORWARD_INPUTS * ROOM) + place * FORWARD_INPUTS * ROOM;
  tile.u = elements;
  tile.delta = elements + ROOM;
  tile.z = elements + 2 * ROOM;
  tile.b = next + place * 2 * STATE_ROOM;
  tile.c = tile.b + STATE_ROOM;
  return tile;
}

template <bool OUTPUTS>
__device__ __forceinline__ void fetch_forward(const SsmArguments& args, const SequenceItem& item, int base,
                                           const ChannelRange& range) {
  ForwardTile tile = forward_tile(base);
  for_each_pack(item, base, range, [&](int place, int64 token, int64 channel) {
    fetch_pack(tile.u + place, args.u, item, token, channel);
    fetch_pack(tile.delta + place, args.delta, item, token, channel);
#if HAS_Z
    if constexpr (OUTPUTS) fetch_pack(tile.z + place, args.z, item, token, channel);
#endif
  });
  fetch_b_and_c(args, item, base, range.group, tile.fetched_states);
}
__device__ __forceinline__ void write_outputs(const SsmArguments& args, const SequenceItem& item, int base,
                                           const ChannelRange& range) {
  ForwardTile tile = forward_tile(base);
  for_each_pack(item, base, range, [&](int place, int64 token, int64 channel) {
    write_pack(args.out, item, token, channel, tile.u + place);
  });
}

#if HAS_SOFTPLUS
// Inputs that change nothing for a lane's tokens that do not exist: softplus(-infinity) = 0, and 0 * 0 = 0.
__device__ __forceinline__ void stage_missing(const ForwardTile& tile, const TokenShare<FORWARD_GROUP>& share, int place,
                                              int existing) {
  const Element zero = from_float(0.0f), minus_infinity = from_float(bits_to_float(0xff800000u));
#pragma unroll 1
  for (int k = 0; k < share.kept; ++k) {
    if (share.first + k < existing) continue;
    tile.u[place + k * TOKEN_STEP] = zero;
    tile.delta[place + k * TOKEN_STEP] = minus_infinity;
  }
}
#endif

// FORWARD_GROUP tokens from `first` of the tile on. Of those, `left` are of the sequence; the others change nothing.
template <bool OUTPUTS>
__device__ __forceinline__ void run_group(const ForwardTile& tile, int first, int left, const Channel& mine, float bias,
                                          float (&h)[STATES], float& dt_sum) {
  TokenShare<FORWARD_GROUP> share;
  int place = (first + share.first) * TOKEN_STEP + mine.own * CHANNEL_STEP;
  float dt[share.kept], dt_u[share.kept], y[FORWARD_GROUP];
#if HAS_SOFTPLUS
  if (!mine.exists || left < FORWARD_GROUP) stage_missing(tile, share, place, mine.exists ? left : 0);
#endif
#pragma unroll
  for (int k = 0; k < share.kept; ++k) {
    float step = step_size(to_float(tile.delta[place + k * TOKEN_STEP]) + bias);
    float added = step * to_float(tile.u[place + k * TOKEN_STEP]);
#if HAS_SOFTPLUS
    dt[k] = step;
    dt_u[k] = added;
#else
    bool exists = mine.exists && share.first + k < left;
    dt[k] = exists ? step : 0.0f;
    dt_u[k] = exists ? added : 0.0f;
#endif
    if (share.owner) dt_sum += dt[k];
  }
#pragma unroll
  for (int j = 0; j < FORWARD_GROUP; ++j) {
    float dt_j = share.of_token(dt, j), dt_u_j = share.of_token(dt_u, j), b[STATES], c[STATES];
    load_floats(tile.b + (first + j) * PADDED_STATES + state_lane() * STATES, b);
    if constexpr (OUTPUTS) load_floats(tile.c + (first + j) * PADDED_STATES + state_lane() * STATES, c);
    y[j] = 0.0f;
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      h[s] = fused_multiply_add(exp2_flush(dt_j * mine.rate[s]), h[s], dt_u_j * b[s]);
      if constexpr (OUTPUTS) y[j] = fused_multiply_add(c[s], h[s], y[j]);
    }
  }
  if constexpr (!OUTPUTS) return;
  ChannelSum<FORWARD_GROUP> sum(y, state_lane());
#pragma unroll
  for (int k = 0; k < share.kept; ++k) {
    float out = y[k];
#if HAS_D
    out = fused_multiply_add(mine.skip, to_float(tile.u[place + k * TOKEN_STEP]), out);
#endif
#if HAS_Z
    out *= silu(to_float(tile.z[place + k * TOKEN_STEP]));
#endif
    if constexpr (LANES > FORWARD_GROUP) sync_warp();  // those that have the same token have read u
    if (share.owner) tile.u[place + k * TOKEN_STEP] = from_float(out);
  }
}

// The tokens of an item, tile by tile, from states h. Calls before_group(index in the item) each FORWARD_GROUP tokens.
// `dt_sum` gets the sum of dt over the tokens that this lane prepares.
template <bool OUTPUTS, typename BeforeGroup>
__device__ __forceinline__ void run_item(const SsmArguments& args, const SequenceItem& item, const ChannelRange& range,
                                         const Channel& mine, float (&h)[STATES], float& dt_sum, BeforeGroup before_group) {
  float bias = own_delta_bias(args, mine);
  if (item.length > 0) fetch_forward<OUTPUTS>(args, item, 0, range);
  for (int base = 0; base < item.length; base += TILE_TOKENS) {
    ForwardTile tile = forward_tile(base);
    wait_fetched();
    stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
    sync_block();  // this tile is there, the one before is done with
    if (OUTPUTS && base > 0) write_outputs(args, item, base - TILE_TOKENS, range);
    if (base + TILE_TOKENS < item.length) fetch_forward<OUTPUTS>(args, item, base + TILE_TOKENS, range);
#pragma unroll 1
    for (int first = 0; first < TILE_TOKENS && base + first < item.length; first += FORWARD_GROUP) {
      before_group(base + first);
      run_group<OUTPUTS>(tile, first, item.length - base - first, mine, bias, h, dt_sum);
    }
  }
  sync_block();  // the last tile is done with
  if (OUTPUTS && item.length > 0) write_outputs(args, item, (item.length - 1) / TILE_TOKENS * TILE_TOKENS, range);
}

#if HAS_SEGMENTS
// The sum of dt over a segment, from what the lanes have of it.
__device__ __forceinline__ void store_dt(const SsmArguments& args, const Segment& segment, const Channel& mine, float dt_sum) {
#pragma unroll
  for (int mask = WARP_CHANNELS; mask < 32; mask *= 2) dt_sum += shuffle_xor(dt_sum, mask);
  int next = segment.offset + segment.item.length;
  if (mine.exists && state_lane() == 0) *boundary_dt(args, segment, next, mine.channel) = dt_sum;
}
// A segment from zero: its states at the end, and the sum of dt.
__device__ __forceinline__ void run_segment_from_zero(const SsmArguments& args, const Segment& segment,
                                                      const ChannelRange& range, const Channel& mine) {
  float h[STATES] = {}, dt_sum = 0.0f;
  run_item<false>(args, segment.item, range, mine, h, dt_sum, [](int) {});
  int next = segment.offset + segment.item.length;
  store_aligned_states(boundary_states(args, args.segment_states, segment, next, mine.channel), mine.exists, h);
  store_dt(args, segment, mine, dt_sum);
}
#endif
