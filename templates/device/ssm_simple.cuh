#pragma once
#include "lane_sum.cuh"
#include "number.cuh"
#include "ssm_arguments.cuh"
#include "ssm_state.cuh"
#include "step_size.cuh"
// What the simple scans share. LANES threads of a warp share a channel; each holds STATES of its states in registers and
// walks the tokens with them, one after the other, straight from global memory.
constexpr int STATES = (D_STATE + LANES - 1) / LANES;
constexpr int CHANNELS = BLOCK / LANES;  // of a block
static_assert(TILE_TOKENS == 1 && VECTOR == 1 && HAS_SEGMENTS == 0 && COPIES == 0 && HAS_CHECKPOINTS == 0,
              "tiles, wide accesses, segments, copies ahead and stored checkpoints are of the other scans");
#include "channel_range.cuh"

// What a thread keeps of its channel. States beyond D_STATE have A = B = C = 0, and channels that do not exist A = 0.
struct Channel {
  int channel;  // of all
  bool exists;
  State rate[STATES];
  float skip, bias;  // D, delta_bias
};

__device__ __forceinline__ int own_state(int s) { return state_lane() * STATES + s; }

// Those of the thread in a dense (..., D_STATE) array; `from` is where its channel begins.
__device__ __forceinline__ void load_states(const float* from, bool exists, State (&h)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    h[s] = {};
    if (exists && own_state(s) < D_STATE) h[s] = load_state(from + own_state(s) * PARTS);
  }
}
__device__ __forceinline__ void store_states(float* to, bool exists, const State (&h)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    if (exists && own_state(s) < D_STATE) store_state(to + own_state(s) * PARTS, h[s]);
  }
}
__device__ __forceinline__ int64 parameter_place(int64 channel) { return channel * D_STATE * PARTS; }
__device__ __forceinline__ int64 state_place(const SsmArguments& args, const SequenceItem& item, const Channel& mine) {
  return (int64(item.slot) * args.dim + mine.channel) * D_STATE * PARTS;
}

__device__ __forceinline__ Channel own_channel(const SsmArguments& args, const ChannelRange& range) {
  Channel mine;
  mine.channel = range.begin + int(threadIdx.x) / 32 * WARP_CHANNELS + warp_channel();
  mine.exists = mine.channel < range.end;
  load_states(args.A + parameter_place(mine.channel), mine.exists, mine.rate);
#pragma unroll
  for (int s = 0; s < STATES; ++s) mine.rate[s] = decay_rate(mine.rate[s]);
  mine.skip = mine.bias = 0.0f;
#if HAS_D
  if (mine.exists) mine.skip = args.D[mine.channel];
#endif
#if HAS_DELTA_BIAS
  if (mine.exists) mine.bias = args.delta_bias[mine.channel];
#endif
  return mine;
}

// B or C of a token: in memory, a complex number is two neighbours, the real part first.
__device__ __forceinline__ void load_of_token(const View4& view, const SequenceItem& item, int t, int group, State (&x)[STATES]) {
  const Element* from = static_cast<const Element*>(view.data) + int64(item.row) * view.batch +
                        (int64(item.start) + t) * view.token + group * view.group;
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    x[s] = {};
    if (own_state(s) >= D_STATE) continue;
    x[s].re = to_float(from[int64(own_state(s)) * PARTS * view.state]);
#if HAS_COMPLEX_A
    x[s].im = to_float(from[(int64(own_state(s)) * PARTS + 1) * view.state]);
#endif
  }
}
__device__ __forceinline__ void load_b(const SsmArguments& args, const SequenceItem& item, int t, int group, const Channel& mine,
                                       State (&b)[STATES]) {
#if HAS_CONSTANT_B
  load_states(static_cast<const float*>(args.B.data) + parameter_place(mine.channel), mine.exists, b);
#else
  load_of_token(args.B, item, t, group, b);
#endif
}
__device__ __forceinline__ void load_c(const SsmArguments& args, const SequenceItem& item, int t, int group, const Channel& mine,
                                       State (&c)[STATES]) {
#if HAS_CONSTANT_C
  load_states(static_cast<const float*>(args.C.data) + parameter_place(mine.channel), mine.exists, c);
#else
  load_of_token(args.C, item, t, group, c);
#endif
}

// An activation of token t of the sequence; 0 where the thread has no channel.
__device__ __forceinline__ float load(const View3& view, const SequenceItem& item, int t, const Channel& mine) {
  return mine.exists ? to_float(*element_at(view, item.row, int64(item.start) + t, mine.channel)) : 0.0f;
}
// The lanes of a channel all have the value; one of them stores it.
__device__ __forceinline__ void store(const View3& view, const SequenceItem& item, int t, const Channel& mine, float x) {
  if (mine.exists && state_lane() == 0) *output_at(view, item.row, int64(item.start) + t, mine.channel) = from_float(x);
}
// Padding tokens.
__device__ __forceinline__ void write_zeros(const View3& view, const SequenceItem& item, const Channel& mine) {
  for (int t = 0; t < item.length; ++t) store(view, item, t, mine, 0.0f);
}

__device__ __forceinline__ float sum_lanes(float x) {
  LaneSum<1, LANES / 2>::run(&x, state_lane());
  return x;
}

// The states with which a sequence begins.
__device__ __forceinline__ void first_states(const SsmArguments& args, const SequenceItem& item, const Channel& mine,
                                             State (&h)[STATES]) {
#if HAS_INITIAL_STATES
  load_states(args.initial_states + state_place(args, item, mine), mine.exists, h);
#else
#pragma unroll
  for (int s = 0; s < STATES; ++s) h[s] = {};
#endif
}

// Token t: h = exp(dt * A) * h + dt * B * u.
__device__ __forceinline__ void advance(const SsmArguments& args, const SequenceItem& item, int t, int group, const Channel& mine,
                                        State (&h)[STATES]) {
  float dt = step_size(load(args.delta, item, t, mine) + mine.bias), dt_u = dt * load(args.u, item, t, mine);
  State b[STATES];
  load_b(args, item, t, group, mine, b);
#pragma unroll
  for (int s = 0; s < STATES; ++s) h[s] = multiply_add(decay(dt, mine.rate[s]), h[s], scale_add(dt_u, b[s], {}));
}
