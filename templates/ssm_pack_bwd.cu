// The selective scan of packed sequences, backward. With dy[t] the gradient of y before the gate, and
//
//   g[t] = C[t] * dy[t] + a[t+1] * g[t+1]     a[t] = exp(dt[t] * A); beyond the last token, dfinal_states
//
// the gradient of the state after token t, for each sequence, channel and state n:
//
//   dC[t] = sum over channels of dy[t] * h[t]            dz[t] = dout[t] * y[t] * silu'(z[t]),  dy[t] = dout[t] * silu(z[t])
//   dB[t] = sum over channels of g[t] * dt[t] * u[t]     dD = sum over t of dy[t] * u[t]
//   du[t] = dt[t] * sum over n of g[t] * B[t] + D * dy[t]
//   ddt[t] = sum over n of g[t] * (A * a[t] * h[t-1] + B[t] * u[t])
//   ddelta[t] = ddt[t] * softplus'(delta[t] + delta_bias), and ddelta_bias is its sum over t
//   dA = sum over t of g[t] * a[t] * h[t-1] * dt[t]      dinitial_states = a[0] * g[0]
//
// The states are needed from last to first, but can only be computed from first to last. So they are known every
// CHECKPOINT_TOKENS tokens of a sequence: stored by ssm_pack_fwd (checkpoints on), or by ssm_pack_bwd_checkpoints, which
// runs the states again into the workspace. ssm_pack_bwd walks the tiles of a sequence from last to first. A tile's
// inputs lie in shared memory as they are, while those of the next one are on their way. It runs the states through the
// tile once to know them before each step of STEP_TOKENS tokens, and then, from the last step to the first, recomputes a
// step's states and decays into registers and goes back through them. The states after a step's last token are those before
// the step that it went back through last, and those after the whole sequence come from running its last tile to the end.
// Results take the place of the inputs.
//
// LANES threads share a channel, STATES states each in registers, and each prepares and finishes one token of a group. dB
// and dC are summed over the channels of a warp, or parts of it, token by token (device/channel_sums.cuh); those sums once a
// tile, then blocks (ssm_pack_bwd_sum_bc), by a fixed tree. Sums over time (dA, dD, ddelta_bias) are kept in registers for some
// hundred tokens, then folded into compensated sums of the block, which ssm_pack_bwd_sum_channels adds up. A long
// sequence can be cut in segments (segments on), see device/ssm_segments.cuh.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_bwd_tile.cuh"
#include "device/ssm_bwd_passes.cuh"

constexpr float LN_2 = 0.6931471805599453f;
constexpr int FOLD_TOKENS = 256;  // after about so many, sums over time are folded into compensated ones

// What a thread carries from token to token, last to first.
struct Backward {
  float carry[STATES];           // a * g, handed from later tokens to earlier ones
  float h[STATES];               // the states after the tokens that are still to go back through
  float dA[STATES];              // sums over time since the last fold,
  float dD, ddelta_bias;         // of the tokens that this lane has finished
};

// Back through the step at token `first` of the tile. Of the tile's tokens, `left` are of the sequence. Those behind do not
// decay, so what comes after the sequence reaches the sums over states there.
__device__ __forceinline__ void run_back(const Tile& tile, int first, int left, const Channel& mine, Backward& state) {
  constexpr int LAST = STEP_TOKENS - 1;
  TokenShare<GROUP> share;
  float* place = place_of_step(tile, int(threadIdx.x) / 32, first / STEP_TOKENS);
  float h[STEP_TOKENS][STATES], decay[STEP_TOKENS][STATES];  // the states before each token
  load_own(place, h[0]);
#pragma unroll
  for (int q = 0; q < LAST; q += GROUP) {
    float dt[1] = {tile.dt[own_token(first + q) * CHANNELS + mine.own].x};
    float dt_u[1] = {dt[0] * to_float(tile.u[own_element(first + q, mine)])};
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      int j = q + i;
      if (j == LAST) continue;
      float dt_j = share.of_token(dt, i), dt_u_j = share.of_token(dt_u, i), b[STATES];
      load_floats(tile.b + (first + j) * PADDED_STATES + state_lane() * STATES, b);
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        decay[j][s] = exp2_flush(dt_j * mine.rate[s]);
        h[j + 1][s] = fused_multiply_add(decay[j][s], h[j][s], dt_u_j * b[s]);
      }
    }
  }
  sync_warp();  // the states before the step have been read: their place is free for sums

#pragma unroll
  for (int q = STEP_TOKENS - GROUP; q >= 0; q -= GROUP) {
    int element = own_element(first + q, mine);
    Float2 own = tile.dt[own_token(first + q) * CHANNELS + mine.own];
    OwnGradient gradient = own_gradient(tile, element);
    float u = to_float(tile.u[element]), dt[1] = {own.x}, cut_dt_u[1] = {CUT * (own.x * u)}, dy[1] = {gradient.dy};
#if HAS_SEGMENTS
    sync_warp();  // for the compiler: loading B and C earlier takes registers, which are few beside what segments need
#endif
    // Sums over the states of this lane: g * B, g * A * a * h[t-1] and C * h.
    float g_b[GROUP], g_a_h[GROUP], c_h[GROUP];
#pragma unroll
    for (int i = GROUP - 1; i >= 0; --i) {
      int j = q + i;
      float dt_j = share.of_token(dt, i), cut_dt_u_j = share.of_token(cut_dt_u, i), dy_j = share.of_token(dy, i);
      float b[STATES], c[STATES], g[STATES];
      load_floats(tile.b + (first + j) * PADDED_STATES + state_lane() * STATES, b);
      load_floats(tile.c + (first + j) * PADDED_STATES + state_lane() * STATES, c);
      g_b[i] = g_a_h[i] = c_h[i] = 0.0f;
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        if (j == LAST) decay[j][s] = exp2_flush(dt_j * mine.rate[s]);
        g[s] = fused_multiply_add(dy_j, c[s], state.carry[s]);
        state.carry[s] = g[s] * decay[j][s];
        float g_a_before = state.carry[s] * h[j][s];
        state.dA[s] = fused_multiply_add(g_a_before, dt_j, state.dA[s]);
        g_b[i] = fused_multiply_add(g[s], b[s], g_b[i]);
        g_a_h[i] = fused_multiply_add(g_a_before, mine.rate[s], g_a_h[i]);
#if HAS_Z
        c_h[i] = fused_multiply_add(c[s], state.h[s], c_h[i]);
#endif
      }
      ChannelSums sums;
      sums.add(g, cut_dt_u_j, state.h, CUT * dy_j);
      sums.store(place + j * SCRATCH);
#pragma unroll
      for (int s = 0; s < STATES; ++s) state.h[s] = h[j][s];
    }
    if constexpr (LANES > GROUP) sync_warp();  // those that have the same token have read its inputs
    ChannelSum<GROUP>(g_b, state_lane());
    ChannelSum<GROUP>(g_a_h, state_lane());
#if HAS_Z
    ChannelSum<GROUP>(c_h, state_lane());
    float dz = fused_multiply_add(mine.skip, u, c_h[0]) * gradient.gate;
#endif
    float du = fused_multiply_add(mine.skip, gradient.dy, g_b[0] * own.x);
    // The rates are in units of log2(e).
    float ddelta = fused_multiply_add(g_b[0], u, g_a_h[0] * LN_2) * own.y;
    if (share.owner) {
      tile.u[element] = from_float(du);
      tile.delta[element] = from_float(ddelta);
#if HAS_Z
      tile.z[element] = from_float(dz);
#endif
      state.dD = fused_multiply_add(gradient.dy, u, state.dD);
      if (own_token(first + q) < left) state.ddelta_bias += ddelta;
    }
  }
}

// Sums over time, (item blocks, 2, D_STATE + 2, dim): dA, dD and ddelta_bias of a block's sequences, then what rounding has taken
// from them. The sums over the last tokens are moved there, so that they are exact for any number of tokens.
__device__ __forceinline__ float* time_sums(const SsmArguments& args, int which, int64 channel) {
  return args.partial_channels + int64(blockIdx.y * 2 * (D_STATE + 2) + which) * args.dim + channel;
}
__device__ __forceinline__ void fold(const SsmArguments& args, float* place, float x) {
  int64 error = (D_STATE + 2) * args.dim;
  CompensatedSum sum = {place[0], place[error]};
  sum.add(x);
  place[0] = sum.sum;
  place[error] = sum.error;
}
__device__ __forceinline__ void fold_time_sums(const SsmArguments& args, const Channel& mine, Backward& state) {
#pragma unroll
  for (int mask = WARP_CHANNELS; mask < 32; mask *= 2) {
    state.dD += shuffle_xor(state.dD, mask);
    state.ddelta_bias += shuffle_xor(state.ddelta_bias, mask);
  }
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    int n = state_lane() * STATES + s;
    if (mine.exists && n < D_STATE) fold(args, time_sums(args, n, mine.channel), state.dA[s]);
    state.dA[s] = 0.0f;
  }
  if (mine.exists && state_lane() == 0) {
    fold(args, time_sums(args, D_STATE, mine.channel), state.dD);
    fold(args, time_sums(args, D_STATE + 1, mine.channel), state.ddelta_bias);
  }
  state.dD = state.ddelta_bias = 0.0f;
}
__device__ __forceinline__ void clear_time_sums(const SsmArguments& args, const ChannelRange& range) {
  for (int which = 0; which < 2 * (D_STATE + 2); ++which) {
    for (int own = threadIdx.x; own < range.end - range.begin; own += BLOCK) *time_sums(args, which, range.begin + own) = 0.0f;
  }
}

// dB and dC of a tile: the rows of all warps, summed to partial sums of the block. A block that takes several ranges of channels
// adds them up. A thread takes SUM_PACK neighbours, fewer than could be where threads would be left without work.
constexpr int TILE_SUMS = TILE_TOKENS * 2 * PADDED_STATES;
constexpr int SUM_PACK = STATE_PACK == 4 && TILE_SUMS / 4 < BLOCK ? 2 : STATE_PACK;
__device__ __forceinline__ void write_b_and_c(const SsmArguments& args, const SequenceItem& item, int base,
                                              const ChannelRange& range, const Tile& tile) {
  int64 token = item.row * args.seqlen + item.start + base;
  int64 sums_of_token = args.groups * args.blocks_per_group * 2 * D_STATE;
#if GROUPS == MANY
  unsigned block = blockIdx.x % unsigned(args.blocks_per_group);
#else
  unsigned block = blockIdx.x;
#endif
  float* partial = args.partial_bc + token * sums_of_token + (range.group * args.blocks_per_group + block) * 2 * D_STATE;
#pragma unroll 1
  for (int k = int(threadIdx.x) * SUM_PACK; k < TILE_SUMS; k += BLOCK * SUM_PACK) {
    int j = k / (2 * PADDED_STATES), column = k % (2 * PADDED_STATES), kind = column / PADDED_STATES, n = column % PADDED_STATES;
    if (base + j >= item.length) break;
    if (n >= D_STATE) continue;
    float sum[SUM_PACK] = {}, more[SUM_PACK];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float* rows = place_of_step(tile, w, j / STEP_TOKENS) + j % STEP_TOKENS * SCRATCH;
#pragma unroll
      for (int g = 0; g < ChannelSums::ROWS; ++g) {
        load_floats(rows + ChannelSums::place(g, column), more);
#pragma unroll
        for (int i = 0; i < SUM_PACK; ++i) sum[i] += more[i];
      }
    }
    float* place = partial + j * sums_of_token + kind * D_STATE + n;
    if (range.begin != block_channels(args).begin) {
      load_floats(place, more);
#pragma unroll
      for (int i = 0; i < SUM_PACK; ++i) sum[i] += more[i];
    }
    store_global_floats(place, sum);
  }
}

// What the tile at `base` has come to.
__device__ __forceinline__ void write_tile(const SsmArguments& args, const SequenceItem& item, int base,
                                           const ChannelRange& range, const Tile& tile) {
  for_each_pack(item, base, range, [&](int place, int64 token, int64 channel) {
    write_pack(args.du, item, token, channel, tile.u + place);
    write_pack(args.ddelta, item, token, channel, tile.delta + place);
#if HAS_Z
    write_pack(args.dz, item, token, channel, tile.z + place);
#endif
  });
  write_b_and_c(args, item, base, range, tile);
}

// The states before token `base`, from the checkpoint, or how the sequence begins.
__device__ __forceinline__ void load_states_before(const SsmArguments& args, const Segment& segment, int base,
                                                   const Channel& mine, float (&h)[STATES]) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) h[s] = 0.0f;
  int at = segment.offset + base;
  if (base > 0 && base >= segment.item.length) return;
  if (at > 0) load_aligned_states(checkpoint_place(args, segment, at, CHECKPOINT_TOKENS, mine.channel), mine.exists, h);
#if HAS_INITIAL_STATES
  if (at == 0) load_states(args.initial_states + state_place(args, segment.item, mine), mine.exists, h);
#endif
}

// A staged tile: the states before each of its steps, from those that are known, and of a sequence's last tile those after it.
// Or, if it is not its turn yet, only the states after it, in place of those before its first step.
constexpr int KNOWN = TILE_TOKENS > CHECKPOINT_TOKENS ? TILE_TOKENS / CHECKPOINT_TOKENS : 1;  // checkpoints of a tile
__device__ __forceinline__ void run_to_steps(const Tile& tile, bool back, bool last, const Channel& mine,
                                             float (&known)[KNOWN][STATES], Backward& state) {
  int warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int k = 0; k < KNOWN; ++k) {
    constexpr int STEPS_EACH = STEPS / KNOWN;
    if (last && k > 0) {  // the sequence may end before the checkpoint
#pragma unroll
      for (int s = 0; s < STATES; ++s) known[k][s] = known[k - 1][s];
    }
#pragma unroll 1
    for (int step = k * STEPS_EACH; step < (k + 1) * STEPS_EACH; ++step) {
      if (back) store_own(place_of_step(tile, warp, step), known[k]);
      if (back && !last && step == (k + 1) * STEPS_EACH - 1) break;
      run_step(tile, step * STEP_TOKENS, mine, known[k]);
    }
  }
  if (!back) store_own(place_of_step(tile, warp, 0), known[0]);
  if (last) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) state.h[s] = known[KNOWN - 1][s];
  }
}

// One sequence or segment, tile by tile from its end. Before a tile that no checkpoint precedes come those between the
// two, forward.
__device__ __forceinline__ void run_sequence(const SsmArguments& args, const Segment& segment, const ChannelRange& range,
                                             const Channel& mine, Backward& state, int& not_folded) {
  const SequenceItem& item = segment.item;
#pragma unroll
  for (int s = 0; s < STATES; ++s) state.carry[s] = 0.0f;
#if HAS_FINAL_STATES
  if (!segment.goes_on) load_states(args.dfinal_states + state_place(args, item, mine), mine.exists, state.carry);
#endif
#if HAS_SEGMENTS
  int next = segment.offset + item.length;
  if (segment.goes_on) {
    load_states(boundary_states(args, args.segment_gradients, segment, next, mine.channel), mine.exists, state.carry);
  }
#endif
  int tiles = (item.length + TILE_TOKENS - 1) / TILE_TOKENS;
  int base = (tiles - 1) * TILE_TOKENS;  // of the tile to go back through
  int at = base / SPAN * SPAN;           // of the tile that is next
  bool done = false;                     // whether the tile behind was just gone back through
  if (tiles > 0) fetch_tile(args, item, at, range, shared_tile(0));
  for (int turn = 0; base >= 0; ++turn) {
    bool back = SPAN == TILE_TOKENS || at == base;
    int next_base = back ? base - TILE_TOKENS : base;
    int next_at = back ? next_base / SPAN * SPAN : at + TILE_TOKENS;
    Tile tile = shared_tile(turn), other = shared_tile(turn + 1);
    float known[KNOWN][STATES];
    wait_fetched();
#pragma unroll
    for (int k = 0; k < KNOWN; ++k) {
      if (at % SPAN == 0) load_states_before(args, segment, at + k * CHECKPOINT_TOKENS, mine, known[k]);
    }
    stage_b_and_c(item, at, tile.fetched_states, tile.b, tile.c);
    sync_block();  // this tile is there, the one before is done with
    if (done) write_tile(args, item, base + TILE_TOKENS, range, other);
    if (next_base >= 0) fetch_tile(args, item, next_at, range, other);
    prepare_tile(args, tile, item.length - at, mine);
    if (STEP_PLACES == 1 && done) sync_block();  // its sums have been read: there is room for states
    if (at % SPAN != 0) load_own(place_of_step(other, int(threadIdx.x) / 32, 0), known[0]);
    run_to_steps(tile, back, back && base + TILE_TOKENS >= item.length, mine, known, state);
    if (back) {
#pragma unroll 1
      for (int step = STEPS - 1; step >= 0; --step) run_back(tile, step * STEP_TOKENS, item.length - base, mine, state);
      not_folded += TILE_TOKENS;
      if (not_folded >= FOLD_TOKENS) {
        fold_time_sums(args, mine, state);
        not_folded = 0;
      }
    }
    done = back;
    if (next_base < 0) {
      sync_block();  // the last tile is done with
      write_tile(args, item, base, range, tile);
    }
    base = next_base;
    at = next_at;
  }
#if HAS_INITIAL_STATES
  if (segment.offset == 0) store_states(args.dinitial_states + state_place(args, item, mine), mine.exists, state.carry);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd(const SsmArguments args) {
  for (ChannelRange range = block_channels(args); range.begin < range.end; range = next_channels(args, range)) {
    clear_time_sums(args, range);
    sync_block();  // cleared, and the channels before are done with
    Channel mine = own_channel(args, range);
    Backward state = {};
    int not_folded = 0;  // tokens
    for (unsigned index = blockIdx.y; index < unsigned(*args.item_count); index += gridDim.y) {
      SequenceItem item = args.items[index];
      if (item.slot >= 0) {
        run_sequence(args, segment_of(args, item), range, mine, state, not_folded);
        continue;
      }
      write_zeros(args.du, item, range);
      write_zeros(args.ddelta, item, range);
#if HAS_Z
      write_zeros(args.dz, item, range);
#endif
    }
    fold_time_sums(args, mine, state);
  }
}

// dB and dC: the channel blocks' partial sums, first block first. Padding tokens have none and get 0.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_bc(const SsmArguments args) {
  int64 tokens = args.batch * args.seqlen;
  int64 sums = tokens * args.groups * 2 * D_STATE;
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= sums) return;
  int64 column = index % (2 * D_STATE);
  int64 group = index / (2 * D_STATE) % args.groups;
  int64 place = index / (2 * D_STATE) / args.groups;
  CompensatedSum sum = {0.0f, 0.0f};
  if (args.run_index[place] >= 0) {
    const float* partial = args.partial_bc + (place * args.groups + group) * args.blocks_per_group * 2 * D_STATE + column;
    for (int64 block = 0; block < args.blocks_per_group; ++block) sum.add(partial[block * 2 * D_STATE]);
  }
  const View4& view = column < D_STATE ? args.dB : args.dC;
  int64 row = place / args.seqlen, token = place % args.seqlen;
  static_cast<Element*>(view.data)[row * view.batch + token * view.token + group * view.group +
                                   column % D_STATE * view.state] = from_float(sum.sum);
}

// dA, dD and ddelta_bias: the item blocks' partial sums, first block first.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_channels(const SsmArguments args) {
  int64 sums = args.dim * (D_STATE + 2);
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= sums) return;
  CompensatedSum sum = {0.0f, 0.0f};
  for (int64 block = 0; block < args.item_blocks; ++block) sum.add(args.partial_channels[2 * block * sums + index]);
  int64 channel = index % args.dim, column = index / args.dim;
  if (column < D_STATE) {
    args.dA[channel * D_STATE + column] = sum.sum;
  } else if (column == D_STATE) {
#if HAS_D
    args.dD[channel] = sum.sum;
#endif
  } else {
#if HAS_DELTA_BIAS
    args.ddelta_bias[channel] = sum.sum;
#endif
  }
}
