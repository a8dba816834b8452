#pragma once
#include "lane_sum.cuh"
#include "ssm_tile.cuh"
// dB and dC of one token, summed over the channels of a warp; by tensor cores over four of them at a time:
//
//   dB[n] = sum over channels of g[n] * dt_u        dC[n] = sum over channels of h[n] * dy
//
// add() takes in the thread's share, with dt_u and dy times CUT; store() leaves ROWS partial sums of each, (ROWS, 2,
// PADDED_STATES), for write_b_and_c() to add up.
#if CHANNEL_SUMS == TENSOR
constexpr float CUT = 1.0f + 0.7f / 2048.0f;
#else
constexpr float CUT = 1.0f;
#endif
#if CHANNEL_SUMS != REGISTERS
// The tensor cores sum over the four lanes c of a row g (see matrix_sum). The addends are the matrix a; b is ones in the column
// that the sum shall have, zeros elsewhere. So eight states fill the columns of one matrix, with dB in rows 0 to 7 and dC in
// rows 8 to 15. What is left is to add the rows g of one state lane. Zero times NaN is NaN: but lanes whose channel does not
// exist bring zeros, and the others are all of one sequence.
//
// tf32 cuts addends to 11 bits, by 0.7 * 2^-11 of their size on average. So they come larger by that (CUT): what has 11
// bits stays as it is, and the rest is cut about as often up as down. Where addends cancel, the rest shows all the same.
// Split, an addend is two of the matrix: its first bits and the rest.
struct ChannelSums {
  static constexpr int ROWS = WARP_CHANNELS / 4;
  static constexpr int MATRICES = (STATES + 7) / 8;
#if CHANNEL_SUMS == SPLIT
  static constexpr int PAIR = 1;  // states that one instruction takes
#else
  static constexpr int PAIR = STATES % 2 == 0 ? 2 : 1;
#endif
  float sum[MATRICES][4] = {};

  static __device__ __forceinline__ float one_in_column(int column) {
    return int(threadIdx.x) % 32 / 4 == column ? 1.0f : 0.0f;
  }
  // What tf32 keeps of a number.
  static __device__ __forceinline__ float tf32_part(float x) { return bits_to_float(float_to_bits(x) & 0xffffe000u); }
  __device__ __forceinline__ void add(const float (&g)[STATES], float dt_u, const float (&h)[STATES], float dy) {
#pragma unroll
    for (int s = 0; s < STATES; s += PAIR) {
#if CHANNEL_SUMS == SPLIT
      float dB = tf32_part(g[s] * dt_u), dC = tf32_part(h[s] * dy), one = one_in_column(s % 8);
      matrix_sum(sum[s / 8], dB, dC, fused_multiply_add(g[s], dt_u, -dB), fused_multiply_add(h[s], dy, -dC), one, one);
#else
      float second = PAIR == 2 ? one_in_column(s % 8 + 1) : 0.0f;
      matrix_sum(sum[s / 8], g[s] * dt_u, h[s] * dy, g[s + PAIR - 1] * dt_u, h[s + PAIR - 1] * dy, one_in_column(s % 8), second);
#endif
    }
  }
  // Where row `g` has its sums in columns (2, PADDED_STATES): turned, so that rows lie in different banks.
  static __device__ __forceinline__ int place(int g, int column) {
    constexpr int TURN = PADDED_STATES % 16 == 0 ? 8 : 0;
    return g * 2 * PADDED_STATES + (column ^ g % 4 * TURN);
  }
  __device__ __forceinline__ void store(float* to) const {
    int lane = int(threadIdx.x) % 32, g = lane / 4 % ROWS, column = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < MATRICES; ++m) {
#pragma unroll
      for (int kind = 0; kind < 2; ++kind) {
        int s = m * 8 + column;
        float* pair = to + place(g, kind * PADDED_STATES + lane / WARP_CHANNELS * STATES + s);
        if constexpr (STATES % 2 == 0) {
          if (STATES % 8 == 0 || s < STATES) *reinterpret_cast<Float2*>(pair) = {sum[m][2 * kind], sum[m][2 * kind + 1]};
        } else {
          if (s < STATES) pair[0] = sum[m][2 * kind];
          if (s + 1 < STATES) pair[1] = sum[m][2 * kind + 1];
        }
      }
    }
  }
};
#else
struct ChannelSums {
  static constexpr int ROWS = 1;
  float dB[STATES], dC[STATES];

  __device__ __forceinline__ void add(const float (&g)[STATES], float dt_u, const float (&h)[STATES], float dy) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      dB[s] = g[s] * dt_u;
      dC[s] = h[s] * dy;
#pragma unroll
      for (int mask = 1; mask < WARP_CHANNELS; mask *= 2) {
        dB[s] += shuffle_xor(dB[s], mask);
        dC[s] += shuffle_xor(dC[s], mask);
      }
    }
  }
  static __device__ __forceinline__ int place(int, int column) { return column; }
  __device__ __forceinline__ void store(float* to) const {
    if (warp_channel() > 0) return;
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      to[state_lane() * STATES + s] = dB[s];
      to[PADDED_STATES + state_lane() * STATES + s] = dC[s];
    }
  }
};
#endif
constexpr int SCRATCH = ChannelSums::ROWS * 2 * PADDED_STATES;  // floats that store() leaves of one token
