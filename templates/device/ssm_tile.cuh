#pragma once
#include "lane_sum.cuh"
#include "math.cuh"
#include "number.cuh"
#include "ssm_arguments.cuh"
// What the scans share: how a block's threads divide channels and states, and how a tile of tokens is staged in shared memory.
//
// LANES threads of a warp share a channel; each holds STATES of its states in registers. A sequence is walked tile by
// tile. Tokens and channels that do not exist are staged so that they change nothing: dt = 0 gives exp(dt * A) = 1, and
// dt * u = 0 adds nothing.
constexpr int STATES = (D_STATE + LANES - 1) / LANES;
constexpr int PADDED_STATES = STATES * LANES;  // states beyond D_STATE have A = B = C = 0
constexpr int CHANNELS = BLOCK / LANES;        // of a block
constexpr int STATE_ROOM = (TILE_TOKENS * PADDED_STATES + 3) / 4 * 4;  // floats that B or C of a tile takes
#if HAS_Z
constexpr int FORWARD_INPUTS = 3;  // activations: u, delta, z
#else
constexpr int FORWARD_INPUTS = 2;
#endif

struct alignas(16) Float4 {
  float x, y, z, w;
};
struct alignas(8) Float2 {
  float x, y;
};

// Takes `count` floats of shared memory. Every array begins at a multiple of 16 bytes, for its widest accesses.
__device__ __forceinline__ float* take_floats(float*& next, int count) {
  float* array = next;
  next += (count + 3) / 4 * 4;
  return array;
}

__device__ __forceinline__ Element* take_elements(float*& next, int count) {
  return reinterpret_cast<Element*>(take_floats(next, (count * int(sizeof(Element)) + 3) / 4));
}

// COUNT neighbouring floats in shared memory, by the widest accesses that their number allows.
template <int COUNT>
__device__ __forceinline__ void load_floats(const float* from, float (&x)[COUNT]) {
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
      Float4 four = *reinterpret_cast<const Float4*>(from + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  } else if constexpr (COUNT % 2 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      Float2 two = *reinterpret_cast<const Float2*>(from + i);
      x[i] = two.x;
      x[i + 1] = two.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = from[i];
  }
}
template <int COUNT>
__device__ __forceinline__ void store_floats(float* to, const float (&x)[COUNT]) {
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) *reinterpret_cast<Float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
  } else if constexpr (COUNT % 2 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) *reinterpret_cast<Float2*>(to + i) = {x[i], x[i + 1]};
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = x[i];
  }
}

// The same to global memory.
template <int COUNT>
__device__ __forceinline__ void store_global_floats(float* to, const float (&x)[COUNT]) {
  constexpr int WIDTH = COUNT % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < COUNT; i += WIDTH) {
    uint32 word[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) word[j] = float_to_bits(x[i + j]);
    store_words(to + i, word);
  }
}

#include "channel_range.cuh"

#if HAS_CHECKPOINTS
// Where the forward stores states for the backward (checkpoints), it does so after so many tokens of a sequence: 8 or 16, or more
// where that would take more than 32 bytes a token and channel. As checkpoint_interval() in generator/ssm_pack.cpp.
constexpr int CHECKPOINT_INTERVAL = D_STATE <= 16 ? 8 : D_STATE <= 128 ? 16 : D_STATE <= 256 ? 32 : 64;
#endif

// The states of one channel in a dense (..., dim, D_STATE) array of fp32, each lane its own; 0 for those that do not exist.
__device__ __forceinline__ void load_states(const float* from, bool exists, float (&h)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    int n = state_lane() * STATES + s;
    h[s] = exists && n < D_STATE ? from[n] : 0.0f;
  }
}
__device__ __forceinline__ void store_states(float* to, bool exists, const float (&h)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    int n = state_lane() * STATES + s;
    if (exists && n < D_STATE) to[n] = h[s];
  }
}
// The same where the array begins at a multiple of 16 bytes.
__device__ __forceinline__ void store_aligned_states(float* to, bool exists, const float (&h)[STATES]) {
  if constexpr (PADDED_STATES == D_STATE) {
    if (exists) store_global_floats(to + state_lane() * STATES, h);
  } else {
    store_states(to, exists, h);
  }
}

__device__ __forceinline__ void load_aligned_states(const float* from, bool exists, float (&h)[STATES]) {
  if constexpr (PADDED_STATES == D_STATE) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) h[s] = 0.0f;
    if (exists) load_floats(from + state_lane() * STATES, h);
  } else {
    load_states(from, exists, h);
  }
}

#include "decay_rate.cuh"
__device__ __forceinline__ void load_decay_rates(const SsmArguments& args, int64 channel, bool exists, int lane,
                                                 float (&rate)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    int n = lane * STATES + s;
    rate[s] = exists && n < D_STATE ? decay_rate(args.A[channel * D_STATE + n]) : 0.0f;
  }
}

// What a thread keeps of its channel.
struct Channel {
  int own;        // inside the block
  int channel;    // of all
  bool exists;
  float rate[STATES];  // A * log2(e)
  float skip;          // D
};
__device__ __forceinline__ Channel own_channel(const SsmArguments& args, const ChannelRange& range) {
  Channel mine;
  mine.own = int(threadIdx.x) / 32 * WARP_CHANNELS + warp_channel();
  mine.channel = range.begin + mine.own;
  mine.exists = mine.channel < range.end;
  load_decay_rates(args, mine.channel, mine.exists, state_lane(), mine.rate);
  mine.skip = 0.0f;
#if HAS_D
  if (mine.exists) mine.skip = args.D[mine.channel];
#endif
  return mine;
}

__device__ __forceinline__ float own_delta_bias(const SsmArguments& args, const Channel& mine) {
#if HAS_DELTA_BIAS
  if (mine.exists) return args.delta_bias[mine.channel];
#endif
  return 0.0f;
}
#include "step_size.cuh"

// The part of a tile that a thread stages: VECTOR channels of one token, neighbours in the order of memory.
struct TilePlace {
  int token, channel;  // inside the tile, inside the block
};
__device__ __forceinline__ TilePlace tile_place(unsigned index) {
#if LAYOUT == CHANNEL_MAJOR
  return {int(index % TILE_TOKENS), int(index / TILE_TOKENS * VECTOR)};
#else
  constexpr unsigned packs = CHANNELS / VECTOR;
  return {int(index / packs), int(index % packs * VECTOR)};
#endif
}

// Inputs come in two steps, so that memory works while the tile before is computed: fetch_... asks for what this very thread
// will stage_... once it has waited for its copies. In between nobody else looks at the copies.
template <int BYTES>
__device__ __forceinline__ void fetch(void* to, const void* from) {
#if COPIES == ASYNC
  if constexpr (BYTES >= 4) return copy_async<BYTES>(to, from);
#endif
  struct alignas(BYTES) Bytes {
    char byte[BYTES];
  };
  *static_cast<Bytes*>(to) = *static_cast<const Bytes*>(from);
}

__device__ __forceinline__ void wait_fetched() {
#if COPIES == ASYNC
  wait_copies();
#endif
}

// B or C of a tile's tokens as fp32 (TILE_TOKENS, PADDED_STATES) in shared memory, 0 where there is no token or state. A thread
// takes STATE_PACK neighbouring states of a token, by one access where memory allows; half of the block takes B, the other C.
constexpr int STATE_PACK = D_STATE % 4 == 0 && PADDED_STATES == D_STATE ? 4 : 1;
constexpr unsigned HALF_BLOCK = BLOCK / 2;
constexpr unsigned STATE_PACKS = PADDED_STATES / STATE_PACK;
constexpr unsigned STATE_ROUNDS = (TILE_TOKENS * STATE_PACKS + HALF_BLOCK - 1) / HALF_BLOCK;
constexpr int FETCHED_STATES = STATE_ROUNDS * BLOCK * STATE_PACK;  // elements that the block fetches of B and C
struct alignas(STATE_PACK * sizeof(Element)) StatePack {
  Element element[STATE_PACK];
};
__device__ __forceinline__ void fetch_states(const View4& view, const SequenceItem& item, int base, int64 group, StatePack* to) {
#pragma unroll 1
  for (unsigned round = 0; round < STATE_ROUNDS; ++round) {
    unsigned k = round * HALF_BLOCK + threadIdx.x % HALF_BLOCK;
    int t = base + int(k / STATE_PACKS), n = int(k % STATE_PACKS * STATE_PACK);
    if (k >= TILE_TOKENS * STATE_PACKS || t >= item.length || n >= D_STATE) continue;
    const Element* from = static_cast<const Element*>(view.data) + int64(item.row) * view.batch +
                          (int64(item.start) + t) * view.token + group * view.group + n * view.state;
    StatePack* place = to + round * BLOCK + threadIdx.x;
    if (view.state == 1 && reinterpret_cast<unsigned long long>(from) % sizeof(StatePack) == 0) {
      fetch<sizeof(StatePack)>(place, from);
    } else {
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) place->element[i] = from[i * view.state];
    }
  }
}
__device__ __forceinline__ void fetch_b_and_c(const SsmArguments& args, const SequenceItem& item, int base, int64 group,
                                              StatePack* to) {
  if (threadIdx.x < HALF_BLOCK) {
    fetch_states(args.B, item, base, group, to);
  } else {
    fetch_states(args.C, item, base, group, to);
  }
}
__device__ __forceinline__ void stage_b_and_c(const SequenceItem& item, int base, const StatePack* fetched, float* b, float* c) {
  float* to = threadIdx.x < HALF_BLOCK ? b : c;
#pragma unroll 1
  for (unsigned round = 0; round < STATE_ROUNDS; ++round) {
    unsigned k = round * HALF_BLOCK + threadIdx.x % HALF_BLOCK;
    if (k >= TILE_TOKENS * STATE_PACKS) break;
    float value[STATE_PACK] = {};
    if (base + int(k / STATE_PACKS) < item.length && int(k % STATE_PACKS) * STATE_PACK < D_STATE) {
      StatePack pack = fetched[round * BLOCK + threadIdx.x];
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) value[i] = to_float(pack.element[i]);
    }
    store_floats(to + k * STATE_PACK, value);
  }
}

// Padding tokens: zero in every channel of the block.
__device__ __forceinline__ void write_zeros(const View3& view, const SequenceItem& item, const ChannelRange& range) {
  for (int base = 0; base < item.length; base += TILE_TOKENS) {
    for (int k = threadIdx.x; k < TILE_TOKENS * CHANNELS / VECTOR; k += BLOCK) {
      TilePlace place = tile_place(k);
      int64 channel = range.begin + place.channel;
      if (base + place.token >= item.length || channel >= range.end) continue;
      float zero[VECTOR] = {};
      store_pack(output_at(view, item.row, int64(item.start) + base + place.token, channel), zero);
    }
  }
}
