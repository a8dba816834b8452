#pragma once
#include "parameters.cuh"
#include "primitives.cuh"
// Sums over the LANES lanes of a warp that share a channel. They stand WARP_CHANNELS apart, so that the channels of a warp
// are neighbours; `lane` numbers them 0, 1, ...
constexpr int WARP_CHANNELS = 32 / LANES;  // that a warp takes at once
__device__ __forceinline__ int state_lane() { return int(threadIdx.x) % 32 / WARP_CHANNELS; }
__device__ __forceinline__ int warp_channel() { return int(threadIdx.x) % WARP_CHANNELS; }

// Each lane brings COUNT addends, one for each of COUNT sums. In a step, lanes whose numbers differ in one bit split the
// sums between them: each passes on the addends of the half it gives up. Once one sum is left, lanes exchange it.
// COUNT + log2 adds instead of COUNT * log2, by a fixed tree.
template <int COUNT, int MASK>
struct LaneSum {
  static __device__ __forceinline__ void run(float* value, int lane) {
    constexpr int HALF = COUNT / 2;
    bool upper = (lane & MASK) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      float keep = upper ? value[i + HALF] : value[i];
      float give = upper ? value[i] : value[i + HALF];
      value[i] = keep + shuffle_xor(give, MASK * WARP_CHANNELS);
    }
    LaneSum<HALF, MASK / 2>::run(value, lane);
  }
  // First of the sums that `lane` holds afterwards.
  static __device__ __forceinline__ int first(int lane) {
    return ((lane & MASK) != 0 ? COUNT / 2 : 0) + LaneSum<COUNT / 2, MASK / 2>::first(lane);
  }
};
template <int MASK>
struct LaneSum<1, MASK> {
  static __device__ __forceinline__ void run(float* value, int lane) {
    value[0] += shuffle_xor(value[0], MASK * WARP_CHANNELS);
    LaneSum<1, MASK / 2>::run(value, lane);
  }
  static __device__ __forceinline__ int first(int) { return 0; }
};
template <int COUNT>
struct LaneSum<COUNT, 0> {
  static __device__ __forceinline__ void run(float*, int) {}
  static __device__ __forceinline__ int first(int) { return 0; }
};
template <>
struct LaneSum<1, 0> {
  static __device__ __forceinline__ void run(float*, int) {}
  static __device__ __forceinline__ int first(int) { return 0; }
};

// How the lanes of a channel share COUNT tokens: this one has first, first + 1, ... first + kept - 1. Where lanes outnumber
// tokens, several have the same one, and `owner` is true in one of them.
template <int COUNT>
struct TokenShare {
  static constexpr int kept = COUNT > LANES ? COUNT / LANES : 1;
  int first;
  bool owner;
  __device__ __forceinline__ TokenShare() {
    first = LaneSum<COUNT, LANES / 2>::first(state_lane());
    owner = COUNT >= LANES || (state_lane() & (LANES / COUNT - 1)) == 0;
  }
  // What the lane that has token `j` holds of it.
  static __device__ __forceinline__ float of_token(const float (&value)[kept], int j) {
    return LANES == 1 ? value[j % kept] : shuffle_from(value[j % kept], j * LANES / COUNT * WARP_CHANNELS + warp_channel());
  }
};

// Turns value[0..COUNT) into sums over the lanes: afterwards value[0..kept) of a lane are the sums of its share.
template <int COUNT>
struct ChannelSum : TokenShare<COUNT> {
  __device__ __forceinline__ ChannelSum(float* value, int lane) { LaneSum<COUNT, LANES / 2>::run(value, lane); }
};
