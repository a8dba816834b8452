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
// CHECKPOINT_TILES * TILE_TOKENS tokens of a sequence: stored by ssm_pack_fwd (checkpoints on), or by ssm_pack_bwd_checkpoints,
// which runs the states again into the workspace. ssm_pack_bwd walks the tiles of a sequence from last to first. It stages a
// tile's inputs in shared memory, while those of the next one are on their way, runs the states through the tile once to know
// them before each step of STEP_TOKENS tokens, and then, from the last step to the first, recomputes a step's states and decays
// into registers and goes back through them. Results take the place of the inputs.
//
// LANES threads share a channel, and a thread takes CHANNEL_GROUPS channels in turn, so that dB and dC are summed over many
// channels before they leave the warp; warps, then blocks (ssm_pack_bwd_sum_bc) are summed by a fixed tree. Sums over time (dA, dD,
// ddelta_bias) are kept in shared memory for some hundred tokens, then folded into compensated sums of the block, which
// ssm_pack_bwd_sum_channels adds up. A long sequence can be cut in segments (segments on), see device/ssm_segments.cuh.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_bwd_tile.cuh"
#include "device/ssm_bwd_passes.cuh"

// The states before each step of the tile, from those before the first.
__device__ __forceinline__ void run_states_to_steps(const Tile& tile) {
  if constexpr (STEPS > 1) {
#pragma unroll 1
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
      float rate[STATES], h[STATES];
      load_floats(tile.rate + own_place(turn), rate);
      load_floats(tile.before + own_place(turn), h);
#pragma unroll 1
      for (int step = 0; step < STEPS - 1; ++step) {
        run_states<STEP_TOKENS>(tile, step * STEP_TOKENS, column_of(channel_of_turn(turn)), rate, h);
        store_floats(tile.before + (step + 1) * OWN + own_place(turn), h);
      }
    }
  }
}

// One step of one turn: from the states before it through its tokens, then back. The sequence has `tokens_left` tokens from the
// tile's first on: those behind do not decay, so what comes after the sequence reaches the sums over states there.
__device__ __forceinline__ void run_back(const Tile& tile, int tokens_left, int step, int turn, ChannelSums& sums) {
  int own = channel_of_turn(turn), column = column_of(own);
  const Float4* tokens = tile.tokens + step * STEP_TOKENS * COLUMNS + column;
  const float* b_of_step = tile.b + step * STEP_TOKENS * PADDED_STATES + state_lane() * STATES;
  const float* c_of_step = tile.c + step * STEP_TOKENS * PADDED_STATES + state_lane() * STATES;
  float rate[STATES], before[STATES];
  load_floats(tile.rate + own_place(turn), rate);
  load_floats(tile.before + step * OWN + own_place(turn), before);

  float h[STEP_TOKENS][STATES], decay[STEP_TOKENS][STATES];
#pragma unroll
  for (int j = 0; j < STEP_TOKENS; ++j) {
    Float4 token = tokens[j * COLUMNS];
    float dt = token.x, dt_u = token.x * token.y, b[STATES];
    load_floats(b_of_step + j * PADDED_STATES, b);
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      decay[j][s] = exp2_flush(dt * rate[s]);
      h[j][s] = fused_multiply_add(decay[j][s], j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s], dt_u * b[s]);
    }
  }

  // Sums over the states of this lane: g * B, g * A * a * h[t-1] and C * h.
  float g_b[STEP_TOKENS], g_a_h[STEP_TOKENS], c_h[STEP_TOKENS];
  float carry[STATES], dA[STATES];
  load_floats(tile.carry + own_place(turn), carry);
  load_floats(tile.dA + own_place(turn), dA);
#pragma unroll
  for (int j = STEP_TOKENS - 1; j >= 0; --j) {
    Float4 token = tokens[j * COLUMNS];
    float dt = token.x, dt_u = token.x * token.y, dy = token.z, b[STATES], c[STATES], g[STATES];
    load_floats(b_of_step + j * PADDED_STATES, b);
    load_floats(c_of_step + j * PADDED_STATES, c);
    g_b[j] = g_a_h[j] = c_h[j] = 0.0f;
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      g[s] = fused_multiply_add(dy, c[s], carry[s]);
      carry[s] = g[s] * decay[j][s];
      float g_a_before = carry[s] * (j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s]);
      dA[s] = fused_multiply_add(g_a_before, dt, dA[s]);
      g_b[j] = fused_multiply_add(g[s], b[s], g_b[j]);
      g_a_h[j] = fused_multiply_add(g_a_before, rate[s], g_a_h[j]);
#if HAS_Z
      c_h[j] = fused_multiply_add(c[s], h[j][s], c_h[j]);
#endif
    }
    sums.add(j, g, dt_u, h[j], dy);
  }
  store_floats(tile.carry + own_place(turn), carry);

  store_floats(tile.dA + own_place(turn), dA);

  // The lanes of the channel divide the step's tokens between them, and put results where the inputs were.
  ChannelSum<STEP_TOKENS> mine(g_b, state_lane()), also_a(g_a_h, state_lane());
#if HAS_Z
  ChannelSum<STEP_TOKENS> also_c(c_h, state_lane());
#endif
  sync_warp();  // every lane has read the inputs
  if (mine.owner) {
    Float2 recent = tile.time_sums[turn * BLOCK + threadIdx.x];
    float skip = tile.skip[own];
#pragma unroll
    for (int j = 0; j < mine.kept; ++j) {
      Float4& place = tile.tokens[(step * STEP_TOKENS + mine.first + j) * COLUMNS + column];
      Float4 token = place;
      float dt = token.x, u = token.y, dy = token.z, gate = token.w;
      float du = fused_multiply_add(skip, dy, g_b[j] * dt);
      // The rates are in units of log2(e).
      float ddelta = fused_multiply_add(g_b[j], u, g_a_h[j] * LN_2);
#if HAS_SOFTPLUS
      ddelta *= softplus_derivative(dt);
#endif
      place = {du, ddelta, fused_multiply_add(skip, u, c_h[j]) * gate, 0.0f};
      recent.x = fused_multiply_add(dy, u, recent.x);
      if (step * STEP_TOKENS + mine.first + j < tokens_left) recent.y += ddelta;
    }
    tile.time_sums[turn * BLOCK + threadIdx.x] = recent;
  }
}

// Sums over time, (item blocks, 2, dim, D_STATE + 2): dA, dD and ddelta_bias of a block's sequences, then what rounding has taken
// from them. The tile's sums over the last tokens are moved there, so that they are exact for any number of tokens.
__device__ __forceinline__ float* time_sums(const SsmArguments& args, int64 channel) {
  return args.partial_channels + (int64(blockIdx.y) * 2 * args.dim + channel) * (D_STATE + 2);
}
__device__ __forceinline__ void fold(float* place, int64 error_offset, float x) {
  CompensatedSum sum = {place[0], place[error_offset]};
  sum.add(x);
  place[0] = sum.sum;
  place[error_offset] = sum.error;
}
__device__ __forceinline__ void fold_time_sums(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
  int64 error_offset = args.dim * (D_STATE + 2);
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float dA[STATES], zero[STATES] = {};
    load_floats(tile.dA + own_place(turn), dA);
    store_floats(tile.dA + own_place(turn), zero);
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      int n = state_lane() * STATES + s;
      if (channel < range.end && n < D_STATE) fold(time_sums(args, channel) + n, error_offset, dA[s]);
    }
    // The first lane of a channel adds up what its lanes have.
    Float2* lanes = tile.time_sums + turn * BLOCK + threadIdx.x;
    sync_warp();
    if (state_lane() == 0) {
      Float2 sum = {0.0f, 0.0f};
      for (int lane = 0; lane < LANES; ++lane) {
        sum.x += lanes[lane * WARP_CHANNELS].x;
        sum.y += lanes[lane * WARP_CHANNELS].y;
      }
      if (channel < range.end) {
        fold(time_sums(args, channel) + D_STATE, error_offset, sum.x);
        fold(time_sums(args, channel) + D_STATE + 1, error_offset, sum.y);
      }
    }
    sync_warp();
    *lanes = {0.0f, 0.0f};
  }
}
__device__ __forceinline__ void clear_time_sums(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    float zero[STATES] = {};
    store_floats(tile.dA + own_place(turn), zero);
    tile.time_sums[turn * BLOCK + threadIdx.x] = {0.0f, 0.0f};
  }
  int64 floats = (range.end - range.begin) * (D_STATE + 2);
  for (int64 k = threadIdx.x; k < floats; k += BLOCK) {
    time_sums(args, range.begin)[k] = time_sums(args, args.dim + range.begin)[k] = 0.0f;
  }
}

// dB and dC of SUM_TOKENS tokens: the warps' sums, as partial sums of the block. A block that takes several ranges of channels adds them up.
__device__ __forceinline__ void write_b_and_c(const SsmArguments& args, const SequenceItem& item, int base,
                                              const ChannelRange& range, const Tile& tile, bool add) {
  constexpr unsigned PACKS = 2 * D_STATE / STATE_PACK;  // of a token: dB, then dC
  int64 token = item.row * args.seqlen + item.start + base;
  if (args.blocks_per_group > 1) token += int64(blockIdx.x % unsigned(args.blocks_per_group)) * args.batch * args.seqlen;
  float* partial = args.partial_bc + (token * args.groups + range.group) * 2 * D_STATE;
#pragma unroll 1
  for (unsigned k = threadIdx.x; k < SUM_TOKENS * PACKS; k += BLOCK) {
    int j = int(k / PACKS), column = int(k % PACKS * STATE_PACK);
    if (base + j >= item.length) break;
    int n = column % D_STATE, kind = column / D_STATE;
    const float* warp_sums = tile.channel_sums + (j * 2 + kind) * PADDED_STATES + n;
    float sum[STATE_PACK] = {}, more[STATE_PACK];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      load_floats(warp_sums + w * SUM_TOKENS * 2 * PADDED_STATES, more);
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) sum[i] += more[i];
    }
    float* place = partial + j * args.groups * 2 * D_STATE + column;
    if (add) {
      load_floats(place, more);
#pragma unroll
      for (int i = 0; i < STATE_PACK; ++i) sum[i] += more[i];
    }
    store_global_floats(place, sum);
  }
}

// du, ddelta and dz of a tile's tokens, elementwise.
__device__ __forceinline__ void write_gradients(const SsmArguments& args, const SequenceItem& item, int base,
                                                const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace place = tile_place(round * BLOCK + threadIdx.x, CHANNELS);
    if (RAGGED && round * BLOCK + int(threadIdx.x) >= TILE_TOKENS * CHANNELS / VECTOR) break;
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (base + place.token >= item.length || channel >= range.end) continue;
    float du[VECTOR], ddelta[VECTOR], dz[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      Float4 result = tile.tokens[place.token * COLUMNS + column_of(place.channel + v)];
      du[v] = result.x;
      ddelta[v] = result.y;
      dz[v] = result.z;
    }
    store_pack(output_at(args.du, item.row, token, channel), du);
    store_pack(output_at(args.ddelta, item.row, token, channel), ddelta);
#if HAS_Z
    store_pack(output_at(args.dz, item.row, token, channel), dz);
#endif
  }
}

__device__ __forceinline__ void fetch_tile(const SsmArguments& args, const Segment& segment, int base,
                                           const ChannelRange& range, const Tile& tile) {
  fetch_inputs<true>(args, segment.item, base, range, tile);
  fetch_b_and_c(args, segment.item, base, range.group, tile.fetched_states);
  if (segment.offset + base > 0 && base % INTERVAL == 0) fetch_checkpoint(args, segment, base, range, tile);
}

// One sequence or segment, tile by tile from its end. Before a tile that no checkpoint precedes come those between the two, forward. A thread
// stages inputs where it alone has taken results from, so what remains to wait for is that inputs are there, and results.
__device__ __forceinline__ void run_sequence(const SsmArguments& args, const Segment& segment, const ChannelRange& range,
                                             const Tile& tile, int& not_folded, bool add) {
  const SequenceItem& item = segment.item;
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    float carry[STATES] = {};
#if HAS_FINAL_STATES || HAS_SEGMENTS
    int64 channel = range.begin + channel_of_turn(turn);
    bool exists = channel < range.end;
#endif
#if HAS_FINAL_STATES
    if (!segment.goes_on) load_states(args.dfinal_states + state_place(args, item, channel), exists, carry);
#endif
#if HAS_SEGMENTS
    int next = segment.offset + item.length;
    if (segment.goes_on) load_states(boundary_states(args, args.segment_gradients, segment, next, channel), exists, carry);
#endif
    store_floats(tile.carry + own_place(turn), carry);
  }
  int tiles = (item.length + TILE_TOKENS - 1) / TILE_TOKENS;
  int base = (tiles - 1) * TILE_TOKENS;  // of the tile to go back through
  int at = base / INTERVAL * INTERVAL;   // of the tile that is next
  if (tiles > 0) fetch_tile(args, segment, at, range, tile);
  while (base >= 0) {
    bool back = CHECKPOINT_TILES == 1 || at == base;
    int next_base = back ? base - TILE_TOKENS : base;
    int next_at = back ? next_base / INTERVAL * INTERVAL : at + TILE_TOKENS;
    wait_fetched();
    if (at % INTERVAL == 0) stage_states_before(args, segment, at, range, tile);
    stage_inputs<true>(item, at, range, tile);
    stage_b_and_c(item, at, tile.fetched_states, tile.b, tile.c);
    if (next_base >= 0) fetch_tile(args, segment, next_at, range, tile);
    sync_block();
    if (back) {
      run_states_to_steps(tile);
#pragma unroll 1
      for (int step = STEPS - 1; step >= 0; --step) {
        ChannelSums sums;
#pragma unroll 1
        for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) run_back(tile, item.length - base, step, turn, sums);
        int first = step * STEP_TOKENS % SUM_TOKENS;
        sums.store(tile.channel_sums + (int(threadIdx.x) / 32 * SUM_TOKENS + first) * 2 * PADDED_STATES);
        if (first > 0) continue;
        sync_block();
        write_b_and_c(args, item, base + step * STEP_TOKENS, range, tile, add);
        if constexpr (SUM_TOKENS < TILE_TOKENS) sync_block();  // the sums have been read
      }
      write_gradients(args, item, base, range, tile);
      not_folded += TILE_TOKENS;
      if (not_folded >= FOLD_TOKENS) {
        fold_time_sums(args, range, tile);
        not_folded = 0;
      }
    } else {
      run_tile(tile);
      sync_block();  // its inputs have been read
    }
    base = next_base;
    at = next_at;
  }
#if HAS_INITIAL_STATES
  if (segment.offset > 0) return;
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float carry[STATES];
    load_floats(tile.carry + own_place(turn), carry);
    store_states(args.dinitial_states + state_place(args, item, channel), channel < range.end, carry);
  }
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange first = block_channels(args, CHANNELS);
  for (ChannelRange range = first; range.begin < range.end; range = next_channels(args, CHANNELS, range)) {
    sync_block();  // the channels before are done with
    clear_time_sums(args, range, tile);
    stage_rates(args, range, tile);
    stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
    sync_block();
    int not_folded = 0;  // tokens
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      SequenceItem item = args.items[index];
      if (item.slot < 0) {
        write_zeros(args.du, item, range, CHANNELS);
        write_zeros(args.ddelta, item, range, CHANNELS);
#if HAS_Z
        write_zeros(args.dz, item, range, CHANNELS);
#endif
        continue;
      }
      run_sequence(args, segment_of(args, item), range, tile, not_folded, range.begin > first.begin);
    }
    fold_time_sums(args, range, tile);
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
    for (int64 block = 0; block < args.blocks_per_group; ++block) sum.add(args.partial_bc[block * sums + index]);
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
  int64 channel = index / (D_STATE + 2), column = index % (D_STATE + 2);
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
