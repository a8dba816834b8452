// The selective scan of packed sequences, forward. For each sequence, channel and state n:
//
//   dt   = softplus(delta[t] + delta_bias)
//   h[t] = exp(dt * A[n]) * h[t-1] + dt * B[t,n] * u[t]      h[-1] = the initial state, or 0
//   y[t] = sum over n of C[t,n] * h[t] + D * u[t]
//   out[t] = y[t] * silu(z[t])
//
// A packed batch is parallel over sequences, so no scan operator is needed inside one: a block takes CHANNELS channels of
// one sequence and walks its tokens. LANES threads of a warp share a channel, STATES states each in registers. A tile of
// tokens lies in shared memory, the activations as they are, B and C as fp32, while the next one is on its way. The lanes
// of a channel share FORWARD_GROUP tokens at a time: each prepares dt and dt * u of its own, hands them to the others as
// they step through the group, and finishes its own out of the lanes' shares of y. Results take the place of u and leave
// with the threads laid out along memory. A long sequence can be cut in segments (segments on), see
// device/ssm_segments.cuh.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_segments.cuh"
#include "device/ssm_forward.cuh"

#if HAS_SEGMENTS
// Segments from zero: their states at the end, and the sum of dt.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd_segments(const SsmArguments args) {
  ChannelRange range = block_channels(args);
  Channel mine = own_channel(args, range);
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    Segment segment = segment_of(args, args.items[index]);
    if (segment.item.slot < 0 || !segment.goes_on) continue;
    run_segment_from_zero(args, segment, range, mine);
  }
}

extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_fwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd(const SsmArguments args) {
  ChannelRange range = block_channels(args);
  Channel mine = own_channel(args, range);
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) {
      write_zeros(args.out, item, range);
      continue;
    }
    Segment segment = segment_of(args, item);
    float h[STATES] = {}, dt_sum = 0.0f;
#if HAS_SEGMENTS
    if (segment.offset > 0) {
      load_states(boundary_states(args, args.segment_states, segment, segment.offset, mine.channel), mine.exists, h);
    }
#endif
#if HAS_INITIAL_STATES || HAS_FINAL_STATES
    int64 state = (int64(item.slot) * args.dim + mine.channel) * D_STATE;
#endif
#if HAS_INITIAL_STATES
    if (segment.offset == 0) load_states(args.initial_states + state, mine.exists, h);
#endif
    run_item<true>(args, item, range, mine, h, dt_sum, [&](int index) {
#if HAS_CHECKPOINTS
      int at = segment.offset + index;
      if (at == 0 || at % CHECKPOINT_INTERVAL != 0) return;
      store_aligned_states(checkpoint_place(args, segment, at, CHECKPOINT_INTERVAL, mine.channel), mine.exists, h);
#endif
    });
#if HAS_FINAL_STATES
    if (!segment.goes_on) store_states(args.final_states + state, mine.exists, h);
#endif
  }
}
