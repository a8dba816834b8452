#pragma once
#include "ssm_bwd_tile.cuh"
// The passes that may come before ssm_pack_bwd itself: the states at checkpoints, where the forward has not stored them, and what
// segments hand to each other (see ssm_segments.cuh).

// Runs the states of the tiles before token `stop` of a segment, a multiple of TILE_TOKENS, from those in tile.before. Calls
// each_tile(base) when the tile at `base` is staged, and after_tile(next) when tile.before holds the states before token `next`.
template <typename EachTile, typename AfterTile>
__device__ __forceinline__ void run_forward(const SsmArguments& args, const SequenceItem& item, int stop,
                                            const ChannelRange& range, const Tile& tile, EachTile each_tile,
                                            AfterTile after_tile) {
  if (stop > 0) {
    fetch_inputs<false>(args, item, 0, range, tile);
    fetch_b_and_c(args, item, 0, range.group, tile.fetched_states);
  }
  for (int base = 0; base < stop; base += TILE_TOKENS) {
    wait_fetched();
    sync_block();  // the tile before is done with
    stage_inputs<false>(item, base, range, tile);
    stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
    if (base + TILE_TOKENS < stop) {
      fetch_inputs<false>(args, item, base + TILE_TOKENS, range, tile);
      fetch_b_and_c(args, item, base + TILE_TOKENS, range.group, tile.fetched_states);
    }
    sync_block();
    each_tile();
    run_tile(tile);
    after_tile(base + TILE_TOKENS);
  }
}

// The channels of a block, one range after another: stages what is kept for all sequences, then calls run(range, segment) for
// each item of the block.
template <typename Run>
__device__ __forceinline__ void for_each_segment(const SsmArguments& args, const Tile& tile, Run run) {
  for (ChannelRange range = block_channels(args, CHANNELS); range.begin < range.end; range = next_channels(args, CHANNELS, range)) {
    sync_block();  // the channels before are done with
    stage_rates(args, range, tile);
    stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
    sync_block();
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      run(range, segment_of(args, args.items[index]));
    }
  }
}

#if HAS_CHECKPOINTS
static_assert(INTERVAL == CHECKPOINT_INTERVAL, "the forward stores checkpoints elsewhere");
#else
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  Tile tile = shared_tile();
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || segment.offset + item.length <= INTERVAL) return;
    auto store = [&](int next) {
      if (next % INTERVAL != 0) return;
#pragma unroll 1
      for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
        int64 channel = range.begin + channel_of_turn(turn);
        float h[STATES];
        load_floats(tile.before + own_place(turn), h);
        store_aligned_states(checkpoint_place(args, segment, segment.offset + next, INTERVAL, channel), channel < range.end, h);
      }
    };
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
      int64 channel = range.begin + channel_of_turn(turn);
      float h[STATES] = {};
#if HAS_INITIAL_STATES
      load_states(args.initial_states + state_place(args, item, channel), channel < range.end, h);
#endif
#if HAS_SEGMENTS
      if (segment.offset > 0) {
        load_states(boundary_states(args, args.segment_states, segment, segment.offset, channel), channel < range.end, h);
      }
#endif
      store_floats(tile.before + own_place(turn), h);
    }
    if (segment.offset > 0) store(0);
    int last = (item.length - 1) / INTERVAL * INTERVAL;
    run_forward(args, item, last, range, tile, [] {}, store);
  });
}
#endif

#if HAS_SEGMENTS
// The sum of dt over the tile, added to tile.dt_sum.
__device__ __forceinline__ void add_dt(const Tile& tile) {
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
    float sum = tile.dt_sum[k];
    for (int t = 0; t < TILE_TOKENS; ++t) sum += tile.tokens[t * COLUMNS + column_of(k)].x;
    tile.dt_sum[k] = sum;
  }
}
__device__ __forceinline__ void clear_own(float* own) {
  float zero[STATES] = {};
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) store_floats(own + own_place(turn), zero);
}
__device__ __forceinline__ void store_boundary(const SsmArguments& args, float* states, const Segment& segment, int at,
                                               const ChannelRange& range, const float* own) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float h[STATES];
    load_floats(own + own_place(turn), h);
    store_aligned_states(boundary_states(args, states, segment, at, channel), channel < range.end, h);
  }
}
__device__ __forceinline__ void store_dt(const SsmArguments& args, const Segment& segment, const ChannelRange& range,
                                         const Tile& tile) {
  int next = segment.offset + segment.item.length;
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
    if (range.begin + k < range.end) *boundary_dt(args, segment, next, range.begin + k) = tile.dt_sum[k];
    tile.dt_sum[k] = 0.0f;
  }
}

#if HAS_CHECKPOINTS
#else
// Segments from zero, forward: their states at the end, and the sum of dt.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_segments(const SsmArguments args) {
  Tile tile = shared_tile();
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || !segment.goes_on) return;
    clear_own(tile.before);
    run_forward(args, item, item.length, range, tile, [&] { add_dt(tile); }, [](int) {});
    store_boundary(args, args.segment_states, segment, segment.offset + item.length, range, tile.before);
    store_dt(args, segment, range, tile);
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

// Segments backward, as if nothing came after: a * g before the first token; and the sum of dt, where it is not known yet.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_gradient_segments(const SsmArguments args) {
  Tile tile = shared_tile();
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
  for_each_segment(args, tile, [&](const ChannelRange& range, const Segment& segment) {
    const SequenceItem& item = segment.item;
    if (item.slot < 0 || segment.offset == 0) return;
    clear_own(tile.carry);
#if HAS_FINAL_STATES
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS && !segment.goes_on; ++turn) {
      int64 channel = range.begin + channel_of_turn(turn);
      float carry[STATES];
      load_states(args.dfinal_states + state_place(args, item, channel), channel < range.end, carry);
      store_floats(tile.carry + own_place(turn), carry);
    }
#endif
    int base = (item.length - 1) / TILE_TOKENS * TILE_TOKENS;
    fetch_inputs<true>(args, item, base, range, tile);
    fetch_b_and_c(args, item, base, range.group, tile.fetched_states);
    for (; base >= 0; base -= TILE_TOKENS) {
      wait_fetched();
      sync_block();  // the tile before is done with
      stage_inputs<true>(item, base, range, tile);
      stage_b_and_c(item, base, tile.fetched_states, tile.b, tile.c);
      if (base > 0) {
        fetch_inputs<true>(args, item, base - TILE_TOKENS, range, tile);
        fetch_b_and_c(args, item, base - TILE_TOKENS, range.group, tile.fetched_states);
      }
      sync_block();
#if HAS_CHECKPOINTS
      add_dt(tile);
#endif
#pragma unroll 1
      for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
        const Float4* tokens = tile.tokens + column_of(channel_of_turn(turn));
        float rate[STATES], carry[STATES];
        load_floats(tile.rate + own_place(turn), rate);
        load_floats(tile.carry + own_place(turn), carry);
#pragma unroll 4
        for (int t = TILE_TOKENS - 1; t >= 0; --t) {
          Float4 token = tokens[t * COLUMNS];
          float dt = token.x, dy = token.z, c[STATES];
          load_floats(tile.c + t * PADDED_STATES + state_lane() * STATES, c);
#pragma unroll
          for (int s = 0; s < STATES; ++s) carry[s] = exp2_flush(dt * rate[s]) * fused_multiply_add(dy, c[s], carry[s]);
        }
        store_floats(tile.carry + own_place(turn), carry);
      }
    }
    store_boundary(args, args.segment_gradients, segment, segment.offset, range, tile.carry);
#if HAS_CHECKPOINTS
    if (segment.goes_on) store_dt(args, segment, range, tile);
    for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dt_sum[k] = 0.0f;
#endif
  });
}
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_gradient_boundaries(const SsmArguments args) {
  walk_boundaries<false>(args, args.segment_gradients);
}
#endif
