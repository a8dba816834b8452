#pragma once
#include "channel_sums.cuh"
#include "element_tile.cuh"
#include "ssm_segments.cuh"
#include "ssm_tile.cuh"
// The tile of tokens that ssm_pack_bwd keeps in shared memory: how it is laid out, filled and run through forward.
constexpr int WARPS = BLOCK / 32;
constexpr int STEPS = TILE_TOKENS / STEP_TOKENS;
constexpr int GROUP = LANES < STEP_TOKENS ? LANES : STEP_TOKENS;  // tokens that the lanes of a channel share, one each
constexpr int SPAN = CHECKPOINT_TOKENS > TILE_TOKENS ? CHECKPOINT_TOKENS : TILE_TOKENS;  // each begins with known states
constexpr int SUM_BLOCK = 128;                                    // threads of the summing kernels
// Floats that a warp keeps of a step: the states before it, then in their place what its tokens add to dB and dC.
constexpr int STEP_ROOM = STATES * 32 > STEP_TOKENS * SCRATCH ? STATES * 32 : STEP_TOKENS * SCRATCH;
// With two places no warp waits until all have read the sums of the tile before. That pays where lanes share channels, since
// there is little work then; with many states the room is worth more, for it leaves more blocks.
constexpr int STEP_PLACES = LANES > 1 && D_STATE <= 64 ? 2 : 1;
#if HAS_Z
constexpr int INPUTS = 4;  // activations: u, delta, dout, z
#else
constexpr int INPUTS = 3;
#endif

// Arrays with two places hold the present tile, and the next or the one before; the others the present one, but for
// fetched_states, which is of the next.
struct Tile {
  Element* u;           // two places: the inputs, and du, ddelta, dz in place of u, delta, z
  Element* delta;       // two places
  Element* dout;        // two places
  Element* z;           // two places
  float* b;             // two places: (TILE_TOKENS, PADDED_STATES)
  float* c;             // two places: the same
  StatePack* fetched_states;  // B and C of the next tile as they are in memory
  Float2* dt;           // (TILE_TOKENS, CHANNELS): dt and its derivative by delta
  float* steps;         // STEP_PLACES: (WARPS, STEPS, STEP_ROOM)
};
__device__ __forceinline__ Tile shared_tile(int turn) {
  float* next = reinterpret_cast<float*>(shared_memory());
  int place = turn % 2;
  Tile tile;
  // What ssm_pack_bwd_gradient_segments needs comes first, up to dt: it is launched with no more than that.
  Element* elements = take_elements(next, 2 * INPUTS * ROOM) + place * INPUTS * ROOM;
  tile.u = elements;
  tile.delta = elements + ROOM;
  tile.dout = elements + 2 * ROOM;
  tile.z = elements + 3 * ROOM;
  float* states = take_floats(next, 4 * STATE_ROOM) + place * 2 * STATE_ROOM;
  tile.b = states;
  tile.c = states + STATE_ROOM;
  tile.fetched_states = reinterpret_cast<StatePack*>(take_elements(next, FETCHED_STATES));
  tile.dt = reinterpret_cast<Float2*>(take_floats(next, TILE_TOKENS * CHANNELS * 2));
  tile.steps = next + place % STEP_PLACES * WARPS * STEPS * STEP_ROOM;
  return tile;
}

// What a warp keeps of a step, STEP_ROOM floats.
__device__ __forceinline__ float* place_of_step(const Tile& tile, int warp, int step) {
  return tile.steps + (warp * STEPS + step) * STEP_ROOM;
}

// STATES values of each thread of a warp, (STATES / OWN_WIDTH, 32, OWN_WIDTH): neighbours in threads are neighbours in memory.
constexpr int OWN_WIDTH = STATES % 4 == 0 ? 4 : STATES % 2 == 0 ? 2 : 1;
__device__ __forceinline__ float* own_place(float* array) { return array + fresh_lane() * OWN_WIDTH; }
__device__ __forceinline__ void load_own(float* array, float (&x)[STATES]) {
  const float* place = own_place(array);
#pragma unroll
  for (int s = 0; s < STATES; s += OWN_WIDTH) {
    float part[OWN_WIDTH];
    load_floats(place + s * 32, part);
#pragma unroll
    for (int i = 0; i < OWN_WIDTH; ++i) x[s + i] = part[i];
  }
}
__device__ __forceinline__ void store_own(float* array, const float (&x)[STATES]) {
  float* place = own_place(array);
#pragma unroll
  for (int s = 0; s < STATES; s += OWN_WIDTH) {
    float part[OWN_WIDTH];
#pragma unroll
    for (int i = 0; i < OWN_WIDTH; ++i) part[i] = x[s + i];
    store_floats(place + s * 32, part);
  }
}

__device__ __forceinline__ int64 state_place(const SsmArguments& args, const SequenceItem& item, const Channel& mine) {
  return (int64(item.slot) * args.dim + mine.channel) * D_STATE;
}

__device__ __forceinline__ void fetch_tile(const SsmArguments& args, const SequenceItem& item, int base,
                                           const ChannelRange& range, const Tile& tile) {
  for_each_pack(item, base, range, [&](int place, int64 token, int64 channel) {
    fetch_pack(tile.u + place, args.u, item, token, channel);
    fetch_pack(tile.delta + place, args.delta, item, token, channel);
    fetch_pack(tile.dout + place, args.dout, item, token, channel);
#if HAS_Z
    fetch_pack(tile.z + place, args.z, item, token, channel);
#endif
  });
  fetch_b_and_c(args, item, base, range.group, tile.fetched_states);
}

// Where the lane's token of group `first` is in the arrays of inputs.
__device__ __forceinline__ int own_token(int first) { return first + TokenShare<GROUP>().first; }
__device__ __forceinline__ int own_element(int first, const Channel& mine) {
  return own_token(first) * TOKEN_STEP + mine.own * CHANNEL_STEP;
}

// Of one token and channel: dy, and dout * silu'(z), by which dz is y times as large.
struct OwnGradient {
  float dy, gate;
};
__device__ __forceinline__ OwnGradient own_gradient(const Tile& tile, int element) {
  float dout = to_float(tile.dout[element]);
#if HAS_Z
  float z = to_float(tile.z[element]), s = sigmoid(z);
  return {dout * (z * s), dout * silu_derivative(z, s)};
#else
  return {dout, 0.0f};
#endif
}

// dt of the tile's tokens, of which `left` are of the sequence. The others get inputs and dt that change nothing.
__device__ __forceinline__ void prepare_tile(const SsmArguments& args, const Tile& tile, int left, const Channel& mine) {
  float bias = own_delta_bias(args, mine);  // not kept: registers are few
  if (!mine.exists) left = 0;
  if (left < TILE_TOKENS) {
#pragma unroll 1
    for (int first = 0; first < TILE_TOKENS; first += GROUP) {
      int place = own_element(first, mine);
      if (own_token(first) < left) continue;
      tile.u[place] = tile.delta[place] = tile.dout[place] = from_float(0.0f);
#if HAS_Z
      tile.z[place] = from_float(0.0f);
#endif
    }
  }
  if constexpr (LANES > GROUP) sync_warp();  // several lanes have the same token
  constexpr int OWN_TOKENS = TILE_TOKENS / GROUP, TOGETHER = OWN_TOKENS < 4 ? OWN_TOKENS : 4;
#pragma unroll 1
  for (int q = 0; q < OWN_TOKENS; q += TOGETHER) {
    float delta[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) delta[i] = to_float(tile.delta[own_element((q + i) * GROUP, mine)]);
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      int own = own_token((q + i) * GROUP);
      StepSize step = step_size_and_derivative(delta[i] + bias);
      if (own >= left) step = {0.0f, 0.0f};
      if (TokenShare<GROUP>().owner) tile.dt[own * CHANNELS + mine.own] = {step.dt, step.derivative};
    }
  }
  if constexpr (LANES > GROUP) sync_warp();
}

// Runs a channel's states through the step at token `first` of the tile.
__device__ __forceinline__ void run_step(const Tile& tile, int first, const Channel& mine, float (&h)[STATES]) {
  TokenShare<GROUP> share;
#pragma unroll
  for (int j = 0; j < STEP_TOKENS; j += GROUP) {
    float dt[1] = {tile.dt[own_token(first + j) * CHANNELS + mine.own].x};
    float dt_u[1] = {dt[0] * to_float(tile.u[own_element(first + j, mine)])};
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      float dt_i = share.of_token(dt, i), dt_u_i = share.of_token(dt_u, i), b[STATES];
      load_floats(tile.b + (first + j + i) * PADDED_STATES + state_lane() * STATES, b);
#pragma unroll
      for (int s = 0; s < STATES; ++s) h[s] = fused_multiply_add(exp2_flush(dt_i * mine.rate[s]), h[s], dt_u_i * b[s]);
    }
  }
}
