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
// Nothing is kept by the forward. ssm_pack_bwd_checkpoints runs the states again and stores them before each tile of
// TILE_TOKENS tokens. ssm_pack_bwd then walks the tiles from last to first: from the checkpoint it recomputes the states of
// STEP_TOKENS tokens into registers and goes back through them. A thread takes CHANNEL_GROUPS channels in turn, adding their
// shares of dB and dC in registers; lanes, then warps, then blocks (ssm_pack_bwd_sum_bc) are summed by a fixed tree. Sums over
// time (dA, dD, ddelta_bias) stay in shared memory until a block is done with its sequences and are summed over blocks by
// ssm_pack_bwd_sum_channels.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/lane_sum.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_tile.cuh"

constexpr int WARPS = BLOCK / 32;
constexpr int WARP_CHANNELS = 32 / LANES;                            // that a warp takes at once
constexpr int CHANNELS = WARPS * WARP_CHANNELS * CHANNEL_GROUPS;     // of a block
constexpr int STEPS = TILE_TOKENS / STEP_TOKENS;
constexpr int SUM_BLOCK = 128;  // threads of the summing kernels

// What a channel's lanes need to know of a token.
struct alignas(16) TokenInputs {
  float dt, dt_u, dy, u;
};
// What they find out: sums over the states.
struct TokenSums {
  float g_b;     // g * B
  float g_a_h;   // g * A * a * h[t-1]
#if HAS_Z
  float c_h;     // C * h
#endif
};

// Which column of the tile a block's channel has: there is a gap after each VECTOR of them where that is many, so that
// threads that stage VECTOR neighbours each write to different banks.
constexpr int GAPS = VECTOR >= 4 ? CHANNELS / VECTOR : 0;
constexpr int COLUMNS = CHANNELS + GAPS;
__device__ __forceinline__ int column_of(int own) { return GAPS > 0 ? own + own / VECTOR : own; }

struct Tile {
  TokenInputs* inputs;  // (TILE_TOKENS, COLUMNS)
  TokenSums* sums;      // (TILE_TOKENS, COLUMNS)
  float* b;             // (TILE_TOKENS, PADDED_STATES)
  float* c;             // (TILE_TOKENS, PADDED_STATES)
  float* rate;          // (CHANNEL_GROUPS, STATES, BLOCK): A * log2(e)
  float* carry;         // (CHANNEL_GROUPS, STATES, BLOCK): a * g, handed from later tokens to earlier ones
  float* dA;            // (CHANNEL_GROUPS, STATES, BLOCK), and what rounding took from it
  float* dA_error;
  float* warp_bc;       // (WARPS, STEP_TOKENS, 2 * PADDED_STATES): dB and dC over one warp's channels
  CompensatedSum* dD;           // (CHANNELS)
  CompensatedSum* ddelta_bias;  // (CHANNELS)
  float* delta_bias;    // (CHANNELS)
  float* skip;          // (CHANNELS): D
};
__device__ __forceinline__ Tile shared_tile() {
  float* next = reinterpret_cast<float*>(shared_memory());
  Tile tile;
  // What ssm_pack_bwd_checkpoints needs comes first: it is launched with no more than that.
  tile.inputs = reinterpret_cast<TokenInputs*>(take_floats(next, TILE_TOKENS * COLUMNS * 4));
  tile.b = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.c = take_floats(next, TILE_TOKENS * PADDED_STATES);
  tile.delta_bias = take_floats(next, CHANNELS);
  tile.skip = take_floats(next, CHANNELS);
  tile.rate = take_floats(next, CHANNEL_GROUPS * STATES * BLOCK);
  tile.carry = take_floats(next, CHANNEL_GROUPS * STATES * BLOCK);
  tile.dA = take_floats(next, CHANNEL_GROUPS * STATES * BLOCK);
  tile.dA_error = take_floats(next, CHANNEL_GROUPS * STATES * BLOCK);
  tile.sums = reinterpret_cast<TokenSums*>(take_floats(next, TILE_TOKENS * COLUMNS * int(sizeof(TokenSums) / 4)));
  tile.warp_bc = take_floats(next, WARPS * STEP_TOKENS * 2 * PADDED_STATES);
  tile.dD = reinterpret_cast<CompensatedSum*>(take_floats(next, 2 * CHANNELS));
  tile.ddelta_bias = reinterpret_cast<CompensatedSum*>(take_floats(next, 2 * CHANNELS));
  return tile;
}

// Checkpoints of a sequence follow each other. Since a sequence begins in the middle of the tile in which the one before
// ended, counting one tile more for each sequence before keeps them apart.
__device__ __forceinline__ float* checkpoint(const SsmArguments& args, const SequenceItem& item, int base, int64 channel,
                                             int lane) {
  int64 first_token = item.row * args.seqlen + item.start;
  int64 tile = first_token / TILE_TOKENS + item.slot + base / TILE_TOKENS;
  return args.checkpoints + (tile * args.dim + channel) * PADDED_STATES + lane * STATES;
}

// Where a thread keeps value `s` of its turn `turn`, in arrays of (CHANNEL_GROUPS, STATES, BLOCK).
__device__ __forceinline__ int own_place(int turn, int s) { return (turn * STATES + s) * BLOCK + int(threadIdx.x); }

// The channel, inside the block, that a thread takes in its turn `turn`.
__device__ __forceinline__ int channel_of_turn(int turn) {
  return (int(threadIdx.x) / 32 * CHANNEL_GROUPS + turn) * WARP_CHANNELS + int(threadIdx.x) % 32 / LANES;
}

__device__ __forceinline__ void load_checkpoint(const SsmArguments& args, const SequenceItem& item, int base,
                                                const ChannelRange& range, int turn, float (&h)[STATES]) {
  int64 channel = range.begin + channel_of_turn(turn);
  // Where there is no channel another's states will do: what comes of them is not written.
  const float* stored = checkpoint(args, item, base, channel < range.end ? channel : range.begin, threadIdx.x % LANES);
#pragma unroll
  for (int s = 0; s < STATES; ++s) h[s] = stored[s];
}

// The decay rates of all turns, kept for all sequences.
__device__ __forceinline__ void stage_rates(const SsmArguments& args, const ChannelRange& range, const Tile& tile) {
#pragma unroll 1
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
    int64 channel = range.begin + channel_of_turn(turn);
    float rate[STATES];
    load_decay_rates(args, channel, channel < range.end, threadIdx.x % LANES, rate);
#pragma unroll
    for (int s = 0; s < STATES; ++s) tile.rate[own_place(turn, s)] = rate[s];
  }
}

// Inputs of a tile's tokens, elementwise; nothing but zeros where there is no token or channel. Writes dy = dout * silu(z).
__device__ __forceinline__ void stage_inputs(const SsmArguments& args, const SequenceItem& item, int base,
                                             const ChannelRange& range, const Tile& tile, bool with_gradient) {
  for (int k = threadIdx.x; k < TILE_TOKENS * CHANNELS / VECTOR; k += BLOCK) {
    TilePlace place = tile_place(k, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    float u[VECTOR] = {}, dt[VECTOR] = {}, dy[VECTOR] = {};
    if (base + place.token < item.length && channel < range.end) {
      load_pack(element_at(args.u, item.row, token, channel), u);
      load_pack(element_at(args.delta, item.row, token, channel), dt);
      float bias[VECTOR];
      load_floats(tile.delta_bias + place.channel, bias);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) dt[v] = step_size(dt[v] + bias[v]);
      if (with_gradient) {
        load_pack(element_at(args.dout, item.row, token, channel), dy);
#if HAS_Z
        float z[VECTOR];
        load_pack(element_at(args.z, item.row, token, channel), z);
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) dy[v] *= silu(z[v]);
#endif
      }
    }
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      tile.inputs[place.token * COLUMNS + column_of(place.channel + v)] = {dt[v], dt[v] * u[v], dy[v], u[v]};
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange range = block_channels(args, CHANNELS);
  int lane = threadIdx.x % LANES;
  stage_rates(args, range, tile);
  stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);
  for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
    SequenceItem item = args.items[index];
    if (item.slot < 0) continue;
    // The states wait in the shared memory that the backward kernel uses for its carry.
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        float h = 0.0f;
#if HAS_INITIAL_STATES
        int64 channel = range.begin + channel_of_turn(turn);
        int n = lane * STATES + s;
        if (channel < range.end && n < D_STATE) {
          h = args.initial_states[(int64(item.slot) * args.dim + channel) * D_STATE + n];
        }
#endif
        tile.carry[own_place(turn, s)] = h;
      }
    }
    for (int base = 0; base < item.length; base += TILE_TOKENS) {
      sync_block();  // the tile before is done with
      stage_inputs(args, item, base, range, tile, false);
      stage_b_and_c(args, item, base, range.group, tile.b, tile.c);
      sync_block();
#pragma unroll 1
      for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
        int column = column_of(channel_of_turn(turn));
        int64 channel = range.begin + channel_of_turn(turn);
        float rate[STATES], h[STATES];
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
          rate[s] = tile.rate[own_place(turn, s)];
          h[s] = tile.carry[own_place(turn, s)];
        }
        if (channel < range.end) {
          float* before = checkpoint(args, item, base, channel, lane);
#pragma unroll
          for (int s = 0; s < STATES; ++s) before[s] = h[s];
        }
#pragma unroll
        for (int t = 0; t < TILE_TOKENS; ++t) {
          TokenInputs x = tile.inputs[t * COLUMNS + column];
          float b[STATES];
          load_floats(tile.b + t * PADDED_STATES + lane * STATES, b);
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            h[s] = fused_multiply_add(exp2_flush(x.dt * rate[s]), h[s], x.dt_u * b[s]);
          }
        }
#pragma unroll
        for (int s = 0; s < STATES; ++s) tile.carry[own_place(turn, s)] = h[s];
      }
    }
  }
}

// dB and dC of STEP_TOKENS tokens: sums over a warp's lanes and then over warps, as partial sums of the block.
__device__ __forceinline__ void write_b_and_c(const SsmArguments& args, const SequenceItem& item, int first,
                                              const ChannelRange& range, const Tile& tile,
                                              float (&dB)[STEP_TOKENS][STATES], float (&dC)[STEP_TOKENS][STATES]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % LANES;
  sync_block();  // the sums of the step before have been read
#pragma unroll
  for (int j = 0; j < STEP_TOKENS; ++j) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
#pragma unroll
      for (int mask = LANES; mask < 32; mask *= 2) {
        dB[j][s] += shuffle_xor(dB[j][s], mask);
        dC[j][s] += shuffle_xor(dC[j][s], mask);
      }
      if (threadIdx.x % 32 < LANES) {
        float* sums = tile.warp_bc + (warp * STEP_TOKENS + j) * 2 * PADDED_STATES + lane * STATES + s;
        sums[0] = dB[j][s];
        sums[PADDED_STATES] = dC[j][s];
      }
    }
  }
  sync_block();
  int64 block_in_group = (range.begin - range.group * (args.dim / args.groups)) / CHANNELS;
  for (int k = threadIdx.x; k < STEP_TOKENS * 2 * D_STATE; k += BLOCK) {
    int t = first + k / (2 * D_STATE), column = k % (2 * D_STATE);
    if (t >= item.length) continue;
    int n = column % D_STATE, kind = column / D_STATE;  // 0: dB, 1: dC
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      sum += tile.warp_bc[(w * STEP_TOKENS + k / (2 * D_STATE)) * 2 * PADDED_STATES + kind * PADDED_STATES + n];
    }
    int64 token = item.row * args.seqlen + item.start + t;
    args.partial_bc[((block_in_group * args.batch * args.seqlen + token) * args.groups + range.group) * 2 * D_STATE +
                    column] = sum;
  }
}

// du, ddelta and dz of a tile's tokens, elementwise. Leaves ddelta and dy * u in the tile for the sums over time.
__device__ __forceinline__ void write_gradients(const SsmArguments& args, const SequenceItem& item, int base,
                                                const ChannelRange& range, const Tile& tile) {
  for (int k = threadIdx.x; k < TILE_TOKENS * CHANNELS / VECTOR; k += BLOCK) {
    TilePlace place = tile_place(k, CHANNELS);
    int64 channel = range.begin + place.channel;
    int64 token = int64(item.start) + base + place.token;
    if (base + place.token >= item.length || channel >= range.end) continue;
    float du[VECTOR], ddelta[VECTOR], bias[VECTOR], skip[VECTOR];
    load_pack(element_at(args.delta, item.row, token, channel), ddelta);
    load_floats(tile.delta_bias + place.channel, bias);
    load_floats(tile.skip + place.channel, skip);
#if HAS_Z
    float z[VECTOR], dz[VECTOR];
    load_pack(element_at(args.z, item.row, token, channel), z);
    load_pack(element_at(args.dout, item.row, token, channel), dz);
#endif
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      int at = place.token * COLUMNS + column_of(place.channel + v);
      TokenInputs x = tile.inputs[at];
      TokenSums sums = tile.sums[at];
      du[v] = fused_multiply_add(skip[v], x.dy, sums.g_b * x.dt);
      float ddt = fused_multiply_add(sums.g_b, x.u, sums.g_a_h);
#if HAS_SOFTPLUS
      ddt *= softplus_derivative(ddelta[v] + bias[v]);
#endif
      ddelta[v] = ddt;
#if HAS_Z
      float y = fused_multiply_add(skip[v], x.u, sums.c_h);
      dz[v] *= y * silu_derivative(z[v], sigmoid(z[v]));
#endif
      tile.sums[at].g_b = ddt;
      tile.sums[at].g_a_h = x.dy * x.u;
    }
    store_pack(output_at(args.du, item.row, token, channel), du);
    store_pack(output_at(args.ddelta, item.row, token, channel), ddelta);
#if HAS_Z
    store_pack(output_at(args.dz, item.row, token, channel), dz);
#endif
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd(const SsmArguments args) {
  Tile tile = shared_tile();
  ChannelRange range = block_channels(args, CHANNELS);
  int lane = threadIdx.x % LANES;
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) tile.dD[k] = tile.ddelta_bias[k] = {0.0f, 0.0f};
  for (int k = 0; k < CHANNEL_GROUPS * STATES; ++k) {
    tile.dA[k * BLOCK + threadIdx.x] = tile.dA_error[k * BLOCK + threadIdx.x] = 0.0f;
  }
  stage_rates(args, range, tile);
  stage_parameters(args, range, CHANNELS, tile.delta_bias, tile.skip);

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
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        float g = 0.0f;
#if HAS_FINAL_STATES
        int64 channel = range.begin + channel_of_turn(turn);
        int n = lane * STATES + s;
        if (channel < range.end && n < D_STATE) {
          g = args.dfinal_states[(int64(item.slot) * args.dim + channel) * D_STATE + n];
        }
#endif
        tile.carry[own_place(turn, s)] = g;
      }
    }

    int tiles = (item.length + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int base = (tiles - 1) * TILE_TOKENS; base >= 0; base -= TILE_TOKENS) {
      sync_block();  // the tile after is done with
      stage_inputs(args, item, base, range, tile, true);
      stage_b_and_c(args, item, base, range.group, tile.b, tile.c);
      sync_block();
#pragma unroll 1
      for (int step = STEPS - 1; step >= 0; --step) {
        float dB[STEP_TOKENS][STATES] = {}, dC[STEP_TOKENS][STATES] = {};
        // The checkpoint of the turn to come is fetched while the present one is worked on.
        float next[STATES];
        load_checkpoint(args, item, base, range, 0, next);
#pragma unroll 1
        for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
          int column = column_of(channel_of_turn(turn));
          float rate[STATES], before[STATES];
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            rate[s] = tile.rate[own_place(turn, s)];
            before[s] = next[s];
          }
          load_checkpoint(args, item, base, range, turn + 1 < CHANNEL_GROUPS ? turn + 1 : turn, next);
          // From the checkpoint to the step, then through the step, keeping each token's states and decays.
#pragma unroll 1
          for (int t = 0; t < step * STEP_TOKENS; ++t) {
            TokenInputs x = tile.inputs[t * COLUMNS + column];
            float b[STATES];
            load_floats(tile.b + t * PADDED_STATES + lane * STATES, b);
#pragma unroll
            for (int s = 0; s < STATES; ++s) {
              before[s] = fused_multiply_add(exp2_flush(x.dt * rate[s]), before[s], x.dt_u * b[s]);
            }
          }
          float h[STEP_TOKENS][STATES], decay[STEP_TOKENS][STATES];
#if HAS_Z
          float c_h[STEP_TOKENS];
#endif
#pragma unroll
          for (int j = 0; j < STEP_TOKENS; ++j) {
            int t = step * STEP_TOKENS + j;
            TokenInputs x = tile.inputs[t * COLUMNS + column];
            float b[STATES];
            load_floats(tile.b + t * PADDED_STATES + lane * STATES, b);
#pragma unroll
            for (int s = 0; s < STATES; ++s) {
              decay[j][s] = exp2_flush(x.dt * rate[s]);
              h[j][s] = fused_multiply_add(decay[j][s], j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s], x.dt_u * b[s]);
            }
#if HAS_Z
            float c[STATES];
            load_floats(tile.c + t * PADDED_STATES + lane * STATES, c);
            c_h[j] = 0.0f;
#pragma unroll
            for (int s = 0; s < STATES; ++s) c_h[j] = fused_multiply_add(c[s], h[j][s], c_h[j]);
#endif
          }
#if HAS_Z
          ChannelSum<STEP_TOKENS> sum_c(c_h, lane);
#pragma unroll
          for (int j = 0; j < sum_c.kept; ++j) {
            if (sum_c.owner) tile.sums[(step * STEP_TOKENS + sum_c.first + j) * COLUMNS + column].c_h = c_h[j];
          }
#endif
          float carry[STATES], dA[STATES], g_b[STEP_TOKENS], g_a_h[STEP_TOKENS];
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            carry[s] = tile.carry[own_place(turn, s)];
            dA[s] = 0.0f;
          }
#pragma unroll
          for (int j = STEP_TOKENS - 1; j >= 0; --j) {
            int t = step * STEP_TOKENS + j;
            TokenInputs x = tile.inputs[t * COLUMNS + column];
            float b[STATES], c[STATES];
            load_floats(tile.b + t * PADDED_STATES + lane * STATES, b);
            load_floats(tile.c + t * PADDED_STATES + lane * STATES, c);
            g_b[j] = g_a_h[j] = 0.0f;
#pragma unroll
            for (int s = 0; s < STATES; ++s) {
              float g = fused_multiply_add(x.dy, c[s], carry[s]);
              carry[s] = g * decay[j][s];
              float g_a_before = carry[s] * (j > 0 ? h[j > 0 ? j - 1 : 0][s] : before[s]);
              dA[s] = fused_multiply_add(g_a_before, x.dt, dA[s]);
              dB[j][s] = fused_multiply_add(g, x.dt_u, dB[j][s]);
              dC[j][s] = fused_multiply_add(x.dy, h[j][s], dC[j][s]);
              g_b[j] = fused_multiply_add(g, b[s], g_b[j]);
              g_a_h[j] = fused_multiply_add(g_a_before, rate[s], g_a_h[j]);
            }
          }
#pragma unroll
          for (int s = 0; s < STATES; ++s) {
            tile.carry[own_place(turn, s)] = carry[s];
            CompensatedSum sum = {tile.dA[own_place(turn, s)], tile.dA_error[own_place(turn, s)]};
            sum.add(dA[s]);
            tile.dA[own_place(turn, s)] = sum.sum;
            tile.dA_error[own_place(turn, s)] = sum.error;
          }
          ChannelSum<STEP_TOKENS> sum_b(g_b, lane), sum_a(g_a_h, lane);
#pragma unroll
          for (int j = 0; j < sum_b.kept; ++j) {
            if (sum_b.owner) {
              TokenSums& sums = tile.sums[(step * STEP_TOKENS + sum_b.first + j) * COLUMNS + column];
              sums.g_b = g_b[j];
              sums.g_a_h = g_a_h[j] * LN_2;  // the rates are in units of log2(e)
            }
          }
        }
        write_b_and_c(args, item, base + step * STEP_TOKENS, range, tile, dB, dC);
      }
      sync_block();
      write_gradients(args, item, base, range, tile);
      sync_block();
      int tokens = item.length - base < TILE_TOKENS ? item.length - base : TILE_TOKENS;
      for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
        if (range.begin + k >= range.end) continue;
        CompensatedSum ddelta_bias = tile.ddelta_bias[k], dD = tile.dD[k];
        for (int t = 0; t < tokens; ++t) {
          ddelta_bias.add(tile.sums[t * COLUMNS + column_of(k)].g_b);
          dD.add(tile.sums[t * COLUMNS + column_of(k)].g_a_h);
        }
        tile.ddelta_bias[k] = ddelta_bias;
        tile.dD[k] = dD;
      }
    }
#if HAS_INITIAL_STATES
    for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
#pragma unroll
      for (int s = 0; s < STATES; ++s) {
        int64 channel = range.begin + channel_of_turn(turn);
        int n = lane * STATES + s;
        if (channel < range.end && n < D_STATE) {
          args.dinitial_states[(int64(item.slot) * args.dim + channel) * D_STATE + n] =
              tile.carry[own_place(turn, s)];
        }
      }
    }
#endif
  }

  // (item blocks, dim, D_STATE + 2): dA, dD, ddelta_bias
  sync_block();
  float* partial = args.partial_channels + int64(blockIdx.y) * args.dim * (D_STATE + 2);
  for (int turn = 0; turn < CHANNEL_GROUPS; ++turn) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
      int64 channel = range.begin + channel_of_turn(turn);
      int n = lane * STATES + s;
      if (channel < range.end && n < D_STATE) {
        partial[channel * (D_STATE + 2) + n] = tile.dA[own_place(turn, s)];
      }
    }
  }
  for (int k = threadIdx.x; k < CHANNELS; k += BLOCK) {
    int64 channel = range.begin + k;
    if (channel >= range.end) continue;
    partial[channel * (D_STATE + 2) + D_STATE] = tile.dD[k].sum;
    partial[channel * (D_STATE + 2) + D_STATE + 1] = tile.ddelta_bias[k].sum;
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
  for (int64 block = 0; block < args.item_blocks; ++block) sum.add(args.partial_channels[block * sums + index]);
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
