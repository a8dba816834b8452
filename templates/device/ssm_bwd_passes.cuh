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
#endif

#if HAS_SEGMENTS
__device__ __forceinline__ void store_boundary(const SsmArguments& args, float* states, const Segment& segment, int at,
                                               const Channel& mine, const float (&h)[STATES]) {
  store_aligned_states(boundary_states(args, states, segment, at, mine.channel), mine.exists, h);
}
#endif

#if HAS_SEGMENTS && !HAS_CHECKPOINTS
// The parts of a sequence are run from zero once. What a part is given is added to its checkpoints later, since those of
// all parts before it have to be known: exp(S * A) times that, with S the sum of dt from its first token to the checkpoint:
// (n_checkpoints, dim), behind the sums over whole segments.
__device__ __forceinline__ float* checkpoint_dt(const SsmArguments& args, const Segment& segment, int at, int64 channel) {
  int64 boundaries = args.batch * args.seqlen / SEGMENT_TOKENS + 1;
  return args.segment_dt + (boundaries + place_inside(args, segment, at, CHECKPOINT_TOKENS)) * args.dim + channel;
}
__device__ __forceinline__ void run_checkpoints_from_zero(const SsmArguments& args, const ChannelRange& range,
                                                          const Channel& mine, const Segment& segment) {
  float h[STATES] = {}, dt_sum = 0.0f;
  run_item<false>(args, segment.item, range, mine, h, dt_sum, [&](int index) {
    if (index == 0 || index % CHECKPOINT_TOKENS != 0) return;
    int at = segment.offset + index;
    store_aligned_states(checkpoint_place(args, segment, at, CHECKPOINT_TOKENS, mine.channel), mine.exists, h);
    float dt = dt_sum;
#pragma unroll
    for (int mask = WARP_CHANNELS; mask < 32; mask *= 2) dt += shuffle_xor(dt, mask);
    if (mine.exists && state_lane() == 0) *checkpoint_dt(args, segment, at, mine.channel) = dt;
  });
  if (!segment.goes_on) return;
  store_boundary(args, args.segment_states, segment, segment.offset + segment.item.length, mine, h);
  store_dt(args, segment, mine, dt_sum);
}
// What the part is given: the states at the boundary before it, or how the sequence begins.
__device__ __forceinline__ void load_given(const SsmArguments& args, const Segment& segment, const Channel& mine,
                                           float (&given)[STATES]) {
  if (segment.offset > 0) {
    load_aligned_states(boundary_states(args, args.segment_states, segment, segment.offset, mine.channel), mine.exists, given);
  }
#if HAS_INITIAL_STATES
  if (segment.offset == 0) load_states(args.initial_states + state_place(args, segment.item, mine), mine.exists, given);
#endif
}
// The checkpoints of a tile as they were run from zero: read early, and written when what the part is given has been added.
constexpr int PLACES = TILE_TOKENS > CHECKPOINT_TOKENS ? TILE_TOKENS / CHECKPOINT_TOKENS : 1;
struct Incomplete {
  float* place[PLACES];  // null where there is none
  float h[PLACES][STATES], dt[PLACES];
};
__device__ __forceinline__ Incomplete load_incomplete(const SsmArguments& args, const Segment& segment, int base,
                                                      const Channel& mine) {
  Incomplete tile = {};
#pragma unroll
  for (int k = 0; k < PLACES; ++k) {
    int index = base + k * CHECKPOINT_TOKENS, at = segment.offset + index;
    if (at == 0 || index % CHECKPOINT_TOKENS != 0 || index >= segment.item.length || !mine.exists) continue;
    tile.place[k] = checkpoint_place(args, segment, at, CHECKPOINT_TOKENS, mine.channel);
    if (index == 0) continue;  // there it began with zero
    load_aligned_states(tile.place[k], true, tile.h[k]);
    tile.dt[k] = *checkpoint_dt(args, segment, at, mine.channel);
  }
  return tile;
}
__device__ __forceinline__ void store_complete(Incomplete& tile, const Channel& mine, const float (&given)[STATES]) {
#pragma unroll
  for (int k = 0; k < PLACES; ++k) {
    if (tile.place[k] == nullptr) continue;
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      tile.h[k][s] = fused_multiply_add(exp2_flush(tile.dt[k] * mine.rate[s]), given[s], tile.h[k][s]);
    }
    store_aligned_states(tile.place[k], true, tile.h[k]);
  }
}
#endif

#if !HAS_CHECKPOINTS
extern "C" __global__ void __launch_bounds__(BLOCK, FORWARD_MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  for_each_segment(args, [&](const ChannelRange& range, const Channel& mine, const Segment& segment) {
    SequenceItem item = segment.item;
    if (item.slot < 0 || segment.offset + item.length <= CHECKPOINT_TOKENS) return;
#if HAS_SEGMENTS
    if (segment.offset > 0 || segment.goes_on) return run_checkpoints_from_zero(args, range, mine, segment);
#endif
    float h[STATES] = {}, dt_sum = 0.0f;
#if HAS_INITIAL_STATES
    load_states(args.initial_states + state_place(args, item, mine), mine.exists, h);
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
#if !HAS_CHECKPOINTS
extern "C" __global__ void __launch_bounds__(WALK_BLOCK) ssm_pack_bwd_boundaries(const SsmArguments args) {
  walk_boundaries<true>(args, args.segment_states);
}
#endif

// Segments backward, as if nothing came after: a * g before the first token; and the sum of dt, where it is not known yet.
// Checkpoints that lack what the segment is given get it on the way.
extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_gradient_segments(const SsmArguments args) {
  TokenShare<GROUP> share;
  for_each_segment(args, [&](const ChannelRange& range, const Channel& mine, const Segment& segment) {
    const SequenceItem& item = segment.item;
#if HAS_INITIAL_STATES && !HAS_CHECKPOINTS
    if (item.slot < 0 || (segment.offset == 0 && !segment.goes_on)) return;
#else
    if (item.slot < 0 || segment.offset == 0) return;
#endif
    float carry[STATES] = {};
#if HAS_CHECKPOINTS
    float dt_sum = 0.0f;
#else
    float given[STATES] = {};
    load_given(args, segment, mine, given);
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
#if !HAS_CHECKPOINTS
      Incomplete incomplete = load_incomplete(args, segment, base, mine);
#endif
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
#if !HAS_CHECKPOINTS
      store_complete(incomplete, mine, given);
#endif
    }
    sync_block();  // the last tile is done with
#if HAS_INITIAL_STATES && !HAS_CHECKPOINTS
    if (segment.offset == 0) return;
#endif
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
