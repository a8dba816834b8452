// The selective scan of packed sequences, forward, where A is complex (complex_A on) or B or C is the same for all tokens
// (constant_B, constant_C on). For each sequence, channel and state n:
//
//   dt   = softplus(delta[t] + delta_bias)
//   h[t] = exp(dt * A[n]) * h[t-1] + dt * B[t,n] * u[t]      h[-1] = the initial state, or 0
//   y[t] = sum over n of C[t,n] * h[t] + D * u[t]            complex: 2 * Re(C[t,n] * h[t])
//   out[t] = y[t] * silu(z[t])
//
// Written to be read, not to be fast: see device/ssm_simple.cuh. All other Specs have ssm_pack_fwd.cu.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_simple.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_fwd(const SsmArguments args) {
  ChannelRange range = block_channels(args);
  Channel mine = own_channel(args, range);
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) {
      write_zeros(args.out, item, mine);
      continue;
    }
    State h[STATES];
    first_states(args, item, mine, h);
#pragma unroll 1
    for (int t = 0; t < item.length; ++t) {
      advance(args, item, t, range.group, mine, h);
      State c[STATES];
      load_c(args, item, t, range.group, mine, c);
      float y = 0.0f;
#pragma unroll
      for (int s = 0; s < STATES; ++s) y = add_real_product(c[s], h[s], y);
      y = PARTS * sum_lanes(y);
#if HAS_D
      y = fused_multiply_add(mine.skip, load(args.u, item, t, mine), y);
#endif
#if HAS_Z
      y *= silu(load(args.z, item, t, mine));
#endif
      store(args.out, item, t, mine, y);
    }
#if HAS_FINAL_STATES
    store_states(args.final_states + state_place(args, item, mine), mine.exists, h);
#endif
  }
}
