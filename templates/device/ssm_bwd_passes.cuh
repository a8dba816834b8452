#pragma once
#include "ssm_bwd_tile.cuh"
#include "ssm_forward.cuh"
// The passes that may come before ssm_pack_bwd itself: the states at checkpoints, where the forward has not stored them, and what
// segments hand to each other (see ssm_segments.cuh).

// The channels of a block, one range after another: calls run(range, channel of the thread, segment) for each item of the block.
template <typename Run>
__device__ __forceinline__ void for_each_segment(const SsmArguments& args, Run run) {
  for (ChannelRange range = block_channels(args); range.begin < range.end; range = next_channels(args, range)) {
    Channel mine = own_channel(args, range);
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      run(range, mine, segment_of(args, args.items[index]));
    }
  }
}

// Running forward takes fewer registers: where three blocks were asked for, four fit.
constexpr int FORWARD_MIN_BLOCKS = MIN_BLOCKS == 3 ? 4 : MIN_BLOCKS;

static_assert(CHECKPOINT_TOKENS % FORWARD_GROUP == 0, "states are stored between groups");
#if HAS_CHECKPOINTS
static_assert(CHECKPOINT_TOKENS == CHECKPOINT_INTERVAL, "the forward stores checkpoints elsewhere");
#else
extern "C" __global__ void __launch_bounds__(BLOCK, FORWARD_MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  for_each_segment(args, [&](const ChannelRange& range, const Channel& mine, const Segment& segment) {
    SequenceItem item = segment.item;
    if (item.slot < 0 || segment.offset + item.length <= CHECKPOINT_TOKENS) return;
    float h[STATES] = {}, dt_sum = 0.0f;
#if HAS_INITIAL_STATES
    load_states(args.initial_states + state_place(args, item, mine), mine.exists, h);
#endif
#if HAS_SEGMENTS
    if (segment.offset > 0) {
      load_states(boundary_states(args, args.segment_states, segment, segment.offset, mine.channel), mine.exists, h);
    }
#endif
    auto store = [&](int index) {
      int at = segment.offset + index;
      if (at == 0 || at % CHECKPOINT_TOKENS != 0) return;
      store_aligned_states(checkpoint_place(args, segment, at, CHECKPOINT_TOKENS, mine.channel), mine.exists, h);
    };
    item.length = (item.length - 1) / CHECKPOINT_TOKENS * CHECKPOINT_TOKENS;  // nothing is needed from after the last one
    run_item<false>(args, item, range, mine, h, dt_sum, store);
    store(item.length);
  });
}
#endif

#if HAS_SEGMENTS
__device__ __forceinline__ void store_boundary(const SsmArguments& args, float* states, const Segment& segment, int at,
                                               const Channel& mine, const float (&h)[STATES]) {
  store_aligned_states(boundary_states(args, states, segment, at, mine.channel), mine.exists, h);
}

#if HAS_CHECKPOINTS
#else
// Segments from zero, forward: their states at the end, and the sum of dt.
extern "C" __global__ void __launch_bounds__(BLOCK, FORWARD_MIN_BLOCKS) ssm_pack_bwd_segments(const SsmArguments args) {
  for_each_segment(args, [&](const ChannelRange& range, const Channel& mine, const Segment& segment) {
    if (segment.item.slot < 0 || !segment.goes_on) return;
    run_segment_from_zero(args, segment, range, mine);
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

// Segments backward, as if nothing came after: a * g before the first token; and the sum of dt, where it is not known yet.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_gradient_segments(const SsmArguments args) {
  TokenShare<GROUP> share;
  for_each_segment(args, [&](const ChannelRange& range, const Channel& mine, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || segment.offset == 0) return;
    float carry[STATES] = {};
#if HAS_CHECKPOINTS
    float dt_sum = 0.0f;
#endif
#if HAS_FINAL_STATES
    if (!segment.goes_on) load_states(args.dfinal_states + state_place(args, item, mine), mine.exists, carry);
#endif
    int base = (item.length - 1) / TILE_TOKENS * TILE_TOKENS;
    fetch_tile(args, item, base, range, shared_tile(base / TILE_TOKENS));
    for (; base >= 0; base -= TILE_TOKENS) {
      Tile tile = shared_tile(base / TILE_TOKENS);
      wait_fetched();
      stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
      sync_block();  // this tile is there, the one before is done with
      if (base > 0) fetch_tile(args, item, base - TILE_TOKENS, range, shared_tile(base / TILE_TOKENS - 1));
      prepare_tile(args, tile, item.length - base, mine);
#pragma unroll 1
      for (int first = TILE_TOKENS - GROUP; first >= 0; first -= GROUP) {
        float dt[1] = {tile.dt[own_token(first) * CHANNELS + mine.own].x};
        float dy[1] = {own_gradient(tile, own_element(first, mine)).dy};
#if HAS_CHECKPOINTS
        if (share.owner) dt_sum += dt[0];
#endif
#pragma unroll
        for (int i = GROUP - 1; i >= 0; --i) {
          float dt_i = share.of_token(dt, i), dy_i = share.of_token(dy, i), c[STATES];
          load_floats(tile.c + (first + i) * PADDED_STATES + state_lane() * STATES, c);
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            carry[s] = exp2_flush(dt_i * mine.rate[s]) * fused_multiply_add(dy_i, c[s], carry[s]);
          }
        }
      }
    }
    sync_block();  // the last tile is done with
    store_boundary(args, args.segment_gradients, segment, segment.offset, mine, carry);
#if HAS_CHECKPOINTS
    if (segment.goes_on) store_dt(args, segment, mine, dt_sum);
#endif
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_gradient_boundaries(const SsmArguments args) {
  walk_boundaries<false>(args, args.segment_gradients);
}
#endif
