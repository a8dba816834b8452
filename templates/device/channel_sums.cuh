#pragma once
#include "lane_sum.cuh"
#include "ssm_tile.cuh"
// dB and dC of STEP_TOKENS tokens, summed over the channels of a warp:
//
//   dB[t, n] = sum over channels of g[t, n] * dt_u[t]        dC[t, n] = sum over channels of h[t, n] * dy[t]
//
// A thread adds its channels' shares one after another with add(), then store() writes the warp's sums as
// (STEP_TOKENS, 2, PADDED_STATES): dB, dC.
#if CHANNEL_SUMS != REGISTERS
// The tensor cores sum over the four lanes c of a row g (see matrix_sum). The addends are the matrix a; b is ones in the column
// that the sum shall have, zeros elsewhere. So eight entries (a token and a state each) fill the columns of one matrix, with
// dB in rows 0 to 7 and dC in rows 8 to 15, and sums over further channels come on top. What is left is to add the rows g of
// one state lane. Zero times NaN is NaN: a step must not span two sequences.
//
// tf32 cuts addends to 11 bits, which shows where they cancel. Split, an addend is two of the matrix: its first bits and the rest.
struct ChannelSums {
  static constexpr int ENTRIES = STEP_TOKENS * STATES;
  static constexpr int MATRICES = (ENTRIES + 7) / 8;
#if CHANNEL_SUMS == SPLIT
  static constexpr int PAIR = 1;  // entries that one instruction takes
#else
  static constexpr int PAIR = STATES % 2 == 0 ? 2 : 1;
#endif
  float sum[MATRICES][4] = {};

  static __device__ __forceinline__ float one_in_column(int column) {
    return int(threadIdx.x) % 32 / 4 == column ? 1.0f : 0.0f;
  }
  // What tf32 keeps of a number.
  static __device__ __forceinline__ float tf32_part(float x) { return bits_to_float(float_to_bits(x) & 0xffffe000u); }
  __device__ __forceinline__ void add(int j, const float (&g)[STATES], float dt_u, const float (&h)[STATES], float dy) {
#pragma unroll
    for (int s = 0; s < STATES; s += PAIR) {
      int entry = j * STATES + s;
#if CHANNEL_SUMS == SPLIT
      float dB = tf32_part(g[s] * dt_u), dC = tf32_part(h[s] * dy), one = one_in_column(entry % 8);
      matrix_sum(sum[entry / 8], dB, dC, fused_multiply_add(g[s], dt_u, -dB), fused_multiply_add(h[s], dy, -dC), one, one);
#else
      float second = PAIR == 2 ? one_in_column(entry % 8 + 1) : 0.0f;
      matrix_sum(sum[entry / 8], g[s] * dt_u, h[s] * dy, g[s + PAIR - 1] * dt_u, h[s + PAIR - 1] * dy,
                 one_in_column(entry % 8), second);
#endif
    }
  }
  __device__ __forceinline__ void store(float* to) {
    int g = int(threadIdx.x) % 32 / 4, column = int(threadIdx.x) % 4 * 2;
    constexpr int ROWS = WARP_CHANNELS / 4;  // of one state lane
#pragma unroll
    for (int m = 0; m < MATRICES; ++m) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float value = sum[m][r];
#pragma unroll
        for (int mask = 1; mask < ROWS; mask *= 2) value += shuffle_xor(value, 4 * mask);
        int entry = m * 8 + column + r % 2;
        if (g % ROWS == 0 && entry < ENTRIES) {
          to[(entry / STATES * 2 + r / 2) * PADDED_STATES + g / ROWS * STATES + entry % STATES] = value;
        }
      }
    }
  }
};
#else
struct ChannelSums {
  float dB[STEP_TOKENS][STATES] = {}, dC[STEP_TOKENS][STATES] = {};

  __device__ __forceinline__ void add(int j, const float (&g)[STATES], float dt_u, const float (&h)[STATES], float dy) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      dB[j][s] = fused_multiply_add(g[s], dt_u, dB[j][s]);
      dC[j][s] = fused_multiply_add(h[s], dy, dC[j][s]);
    }
  }
  __device__ __forceinline__ void store(float* to) {
#pragma unroll
    for (int j = 0; j < STEP_TOKENS; ++j) {
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
#pragma unroll
        for (int mask = 1; mask < WARP_CHANNELS; mask *= 2) {
          dB[j][s] += shuffle_xor(dB[j][s], mask);
          dC[j][s] += shuffle_xor(dC[j][s], mask);
        }
        if (warp_channel() == 0) {
          to[j * 2 * PADDED_STATES + state_lane() * STATES + s] = dB[j][s];
          to[(j * 2 + 1) * PADDED_STATES + state_lane() * STATES + s] = dC[j][s];
        }
      }
    }
  }
};
#endif
