#pragma once
#include "ssm_tile.cuh"
// Long sequences in segments of SEGMENT_TOKENS tokens that run side by side. What one hands to the next is linear in what it was
// given: with S the sum of dt over a segment,
//
//   states after it     = exp(S * A) * states before it + its states if it had begun with zero
//   a * g before it     = exp(S * A) * (a * g after it) + its a * g if nothing had come after
//
// So three passes take the place of one: every segment from zero, a walk over the boundaries between segments, and every segment
// again with what it is really given. Sequences of one segment take part in the last only. The checkpoints that the backward
// computes for itself are completed instead of run again.
struct Segment {
  SequenceItem item;
  int offset;    // tokens of the sequence before it
  bool goes_on;  // another one follows
};
__device__ __forceinline__ Segment segment_of(const SsmArguments& args, const SequenceItem& item) {
#if HAS_SEGMENTS
  if (item.slot >= 0 && item.length > 0) {
    const int* run_index = args.run_index + item.row * args.seqlen + item.start;
    int offset = run_index[0];
    bool goes_on = item.start + int64(item.length) < args.seqlen && run_index[item.length] == offset + item.length;
    return {item, offset, goes_on};
  }
#endif
  return {item, 0, false};
}

// Where a channel's states before token `at` > 0 of the segment's sequence are kept, in an array with one place every
// `interval` tokens; `at` is a multiple of it. A sequence that begins at token f of all tokens has its first place at
// f / interval; since one of n tokens has at most (n - 1) / interval of them, the next sequence's are behind.
__device__ __forceinline__ int64 place_inside(const SsmArguments& args, const Segment& segment, int at, int interval) {
  int64 first_token = segment.item.row * args.seqlen + segment.item.start - segment.offset;
  return first_token / interval + at / interval - 1;
}
__device__ __forceinline__ float* checkpoint_place(const SsmArguments& args, const Segment& segment, int at, int interval,
                                                   int64 channel) {
  return args.checkpoints + (place_inside(args, segment, at, interval) * args.dim + channel) * D_STATE;
}

#if HAS_SEGMENTS
// The boundary before token `at` of the segment's sequence, in one of the arrays (n_boundaries, dim, D_STATE).
__device__ __forceinline__ float* boundary_states(const SsmArguments& args, float* states, const Segment& segment, int at,
                                                  int64 channel) {
  return states + (place_inside(args, segment, at, SEGMENT_TOKENS) * args.dim + channel) * D_STATE;
}
// The sum of dt over the segment before it, (n_boundaries, dim).
__device__ __forceinline__ float* boundary_dt(const SsmArguments& args, const Segment& segment, int at, int64 channel) {
  return args.segment_dt + place_inside(args, segment, at, SEGMENT_TOKENS) * args.dim + channel;
}

// How many boundaries a sequence has, from its first segment: token k * SEGMENT_TOKENS is its own up to the last one.
__device__ __forceinline__ int boundary_count(const SsmArguments& args, const Segment& first) {
  const int* run_index = args.run_index + first.item.row * args.seqlen + first.item.start;
  int known = 0, beyond = int((args.seqlen - first.item.start - 1) / SEGMENT_TOKENS) + 1;
  while (beyond - known > 1) {
    int middle = known + (beyond - known) / 2;
    if (run_index[int64(middle) * SEGMENT_TOKENS] == middle * SEGMENT_TOKENS) {
      known = middle;
    } else {
      beyond = middle;
    }
  }
  return known;
}

// The walk over the boundaries of each sequence, a thread for each state of each channel. FORWARD: `states` holds what
// segments end with from zero, and then what they are given. Else it holds a * g at their beginning, and then what comes from
// all segments after.
constexpr int WALK_BLOCK = 128;
constexpr int WALK_AHEAD = 8;  // boundaries whose values are asked for together
template <bool FORWARD>
__device__ __forceinline__ void walk_boundaries(const SsmArguments& args, float* states) {
  int64 index_of_state = int64(blockIdx.x) * WALK_BLOCK + threadIdx.x;
  int64 channel = index_of_state / D_STATE;
  int n = int(index_of_state % D_STATE);
  if (channel >= args.dim) return;
  float rate = decay_rate(args.A[channel * D_STATE + n]);
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    Segment segment = segment_of(args, args.items[index]);
    if (segment.item.slot < 0 || segment.offset > 0 || !segment.goes_on) continue;
    int count = boundary_count(args, segment);
    float h = 0.0f;
#if HAS_INITIAL_STATES
    if constexpr (FORWARD) h = args.initial_states[(int64(segment.item.slot) * args.dim + channel) * D_STATE + n];
#endif
    for (int done = 0; done < count; done += WALK_AHEAD) {
      float value[WALK_AHEAD], dt[WALK_AHEAD];
#pragma unroll
      for (int i = 0; i < WALK_AHEAD; ++i) {
        // Forward, boundary k takes the segment before it; backward, the segment after it, whose dt is at the next.
        int k = FORWARD ? done + i + 1 : count - done - i;
        int of_dt = FORWARD ? k : k + 1;
        bool exists = done + i < count;
        value[i] = exists ? boundary_states(args, states, segment, k * SEGMENT_TOKENS, channel)[n] : 0.0f;
        dt[i] = exists && of_dt <= count ? *boundary_dt(args, segment, of_dt * SEGMENT_TOKENS, channel) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < WALK_AHEAD; ++i) {
        int k = FORWARD ? done + i + 1 : count - done - i;
        h = fused_multiply_add(exp2_flush(dt[i] * rate), h, value[i]);
        if (done + i < count) boundary_states(args, states, segment, k * SEGMENT_TOKENS, channel)[n] = h;
      }
    }
  }
}
#endif
