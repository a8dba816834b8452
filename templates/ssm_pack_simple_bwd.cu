// The selective scan of packed sequences, backward, where A is complex (complex_A on) or B or C is the same for all tokens
// (constant_B, constant_C on). With dy[t] the gradient of y before the gate, * conjugation, which real numbers do not notice,
// and f = 2 with complex A, 1 without,
//
//   g[t] = f * dy[t] * C[t]* + a[t+1]* * g[t+1]     a[t] = exp(dt[t] * A); beyond the last token, dfinal_states
//
// the gradient of the state after token t, for each sequence, channel and state n:
//
//   dC[t] = f * dy[t] * h[t]*              dz[t] = dout[t] * y[t] * silu'(z[t]),  dy[t] = dout[t] * silu(z[t])
//   dB[t] = g[t] * dt[t] * u[t]            dD = sum over t of dy[t] * u[t]
//   du[t] = dt[t] * sum over n of Re(g[t]* * B[t]) + D * dy[t]
//   ddt[t] = sum over n of Re(g[t]* * (A * a[t] * h[t-1] + B[t] * u[t]))
//   ddelta[t] = ddt[t] * softplus'(delta[t] + delta_bias), and ddelta_bias is its sum over t
//   dA = sum over t of g[t] * (a[t] * h[t-1])* * dt[t]      dinitial_states = a[0]* * g[0]
//
// dB and dC are summed over the channels of a group, or, where B or C is constant, over tokens.
//
// Written to be read, not to be fast: see device/ssm_simple.cuh. ssm_pack_bwd_checkpoints runs the states forward and keeps
// them every CHECKPOINT_TOKENS tokens. ssm_pack_bwd walks each sequence from its end in steps of STEP_TOKENS tokens: from the
// checkpoint before the step forward, with the states before each of its tokens into shared memory, then back through them.
// Sums over channels are taken within a warp, then over warps, then over blocks by ssm_pack_bwd_sum_bc; those over tokens are
// folded into compensated sums of the block, which ssm_pack_bwd_sum_channels adds up. All by fixed trees.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/number.cuh"
#include "device/math.cuh"
#include "device/ssm_arguments.cuh"
#include "device/ssm_simple.cuh"

static_assert(CHANNEL_SUMS == 0, "dB and dC are summed in registers here");
static_assert(CHECKPOINT_TOKENS % STEP_TOKENS == 0, "a step begins at a checkpoint, or in between");
constexpr int WARPS = BLOCK / 32;
constexpr int SUM_BLOCK = 128;    // threads of the kernels that sum what blocks have left
constexpr int FOLD_TOKENS = 256;  // after about so many, sums over time are folded into compensated ones

// Floats of dB and dC that a token has, and those that a channel has with dA before and dD and ddelta_bias behind them.
constexpr int STATE_FLOATS = D_STATE * PARTS;
constexpr int TOKEN_B = HAS_CONSTANT_B ? 0 : STATE_FLOATS;
constexpr int TOKEN_FLOATS = TOKEN_B + (HAS_CONSTANT_C ? 0 : STATE_FLOATS);
constexpr int CHANNEL_B = STATE_FLOATS, CHANNEL_C = CHANNEL_B + (HAS_CONSTANT_B ? STATE_FLOATS : 0);
constexpr int CHANNEL_D = CHANNEL_C + (HAS_CONSTANT_C ? STATE_FLOATS : 0);
constexpr int CHANNEL_FLOATS = CHANNEL_D + 2;

// Where a channel's states before token `at` > 0 of a sequence are kept; `at` is a multiple of CHECKPOINT_TOKENS. A sequence that
// begins at token f of all tokens has its first place at f / CHECKPOINT_TOKENS; the next sequence's are behind its last one.
__device__ __forceinline__ float* checkpoint_place(const SsmArguments& args, const SequenceItem& item, int at,
                                                   const Channel& mine) {
  int64 first_token = item.row * args.seqlen + item.start;
  int64 place = first_token / CHECKPOINT_TOKENS + at / CHECKPOINT_TOKENS - 1;
  return args.checkpoints + (place * args.dim + mine.channel) * STATE_FLOATS;
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd_checkpoints(const SsmArguments args) {
  for (ChannelRange range = block_channels(args); range.begin < range.end; range = next_channels(args, range)) {
    Channel mine = own_channel(args, range);
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      SequenceItem item = args.items[index];
      if (item.slot < 0) continue;
      State h[STATES];
      first_states(args, item, mine, h);
#pragma unroll 1
      for (int t = 0; t + 1 < item.length; ++t) {
        advance(args, item, t, range.group, mine, h);
        int next = t + 1;
        if (next % CHECKPOINT_TOKENS == 0) store_states(checkpoint_place(args, item, next, mine), mine.exists, h);
      }
    }
  }
}

// Shared memory: the states before each token of a step, each thread its own, and the warps' sums of dB and dC.
__device__ __forceinline__ float* place_before(int j, int s) {
  return reinterpret_cast<float*>(shared_memory()) + (j * STATES + s) * PARTS * BLOCK + threadIdx.x * PARTS;
}
__device__ __forceinline__ float* warp_sums(int warp, int j) {
  constexpr int BEFORE = STEP_TOKENS * STATES * PARTS * BLOCK;
  return reinterpret_cast<float*>(shared_memory()) + BEFORE + (warp * STEP_TOKENS + j) * TOKEN_FLOATS;
}

// A gradient of B or C of a token, summed over the channels of the warp.
__device__ __forceinline__ float sum_channels(float x) {
#pragma unroll
  for (int mask = 1; mask < WARP_CHANNELS; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}
__device__ __forceinline__ void store_sum(float* sums, int s, bool exists, State x) {
  if (!exists) x = {};  // not a number may have come from the token's B or C
  x.re = sum_channels(x.re);
#if HAS_COMPLEX_A
  x.im = sum_channels(x.im);
#endif
  if (warp_channel() == 0 && own_state(s) < D_STATE) store_state(sums + own_state(s) * PARTS, x);
}

// What a thread carries from token to token, last to first.
struct Backward {
  State carry[STATES];    // a* * g, handed from later tokens to earlier ones
  State dA[STATES];       // sums over time since the last fold
#if HAS_CONSTANT_B
  State dB[STATES];
#endif
#if HAS_CONSTANT_C
  State dC[STATES];
#endif
  float dD, ddelta_bias;  // the same in all lanes of a channel
};

// Token t, the one at j of its step, whose states before it are in shared memory.
__device__ __forceinline__ void step_back(const SsmArguments& args, const SequenceItem& item, int t, int j, int group,
                                          const Channel& mine, Backward& state) {
  StepSize step = step_size_and_derivative(load(args.delta, item, t, mine) + mine.bias);
  float u = load(args.u, item, t, mine), dout = load(args.dout, item, t, mine), dt_u = step.dt * u, dy = dout;
#if HAS_Z
  float z = load(args.z, item, t, mine), s_of_z = sigmoid(z);
  dy *= z * s_of_z;
#endif
  State b[STATES], c[STATES];
  load_b(args, item, t, group, mine, b);
  load_c(args, item, t, group, mine, c);
  float g_b = 0.0f, g_a_h = 0.0f;  // sums over states: g* * B, g* * A * a * h[t-1] and C * h
#if HAS_Z
  float y = 0.0f;
#endif
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    State before = load_state(place_before(j, s)), a = decay(step.dt, mine.rate[s]);
    State after = multiply_add(a, before, scale_add(dt_u, b[s], {}));
    State g = scale_add(PARTS * dy, conjugate(c[s]), state.carry[s]);
    state.carry[s] = multiply_add(conjugate(a), g, {});
    State A = mine.rate[s];
    A.re *= 0.6931471805599453f;  // ln 2: rates are in units of log2(e)
#if HAS_Z
    y = add_real_product(c[s], after, y);
#endif
    g_b = add_real_product(conjugate(g), b[s], g_b);
    g_a_h = add_real_product(conjugate(state.carry[s]), multiply_add(A, before, {}), g_a_h);
    state.dA[s] = scale_add(step.dt, multiply_add(conjugate(before), state.carry[s], {}), state.dA[s]);
#if HAS_CONSTANT_B
    state.dB[s] = scale_add(dt_u, g, state.dB[s]);
#else
    store_sum(warp_sums(int(threadIdx.x) / 32, j), s, mine.exists, scale_add(dt_u, g, {}));
#endif
#if HAS_CONSTANT_C
    state.dC[s] = scale_add(PARTS * dy, conjugate(after), state.dC[s]);
#else
    store_sum(warp_sums(int(threadIdx.x) / 32, j) + TOKEN_B, s, mine.exists, scale_add(PARTS * dy, conjugate(after), {}));
#endif
  }
  g_b = sum_lanes(g_b);
  float ddelta = fused_multiply_add(g_b, u, sum_lanes(g_a_h)) * step.derivative;
  store(args.du, item, t, mine, fused_multiply_add(mine.skip, dy, g_b * step.dt));
  store(args.ddelta, item, t, mine, ddelta);
#if HAS_Z
  y = fused_multiply_add(mine.skip, u, PARTS * sum_lanes(y));
  store(args.dz, item, t, mine, dout * y * silu_derivative(z, s_of_z));
#endif
  state.dD = fused_multiply_add(dy, u, state.dD);
  state.ddelta_bias += ddelta;
}

// Sums over time, (item blocks, 2, CHANNEL_FLOATS, dim): of a block's sequences, then what rounding has taken from them. A thread
// clears, folds and reads its own only.
__device__ __forceinline__ float* time_sum(const SsmArguments& args, int which, const Channel& mine) {
  return args.partial_channels + int64(blockIdx.y * 2 * CHANNEL_FLOATS + which) * args.dim + mine.channel;
}
__device__ __forceinline__ void fold(const SsmArguments& args, int which, const Channel& mine, float x, bool first) {
  float *place = time_sum(args, which, mine), *error = time_sum(args, CHANNEL_FLOATS + which, mine);
  CompensatedSum sum = {first ? 0.0f : *place, first ? 0.0f : *error};
  sum.add(x);
  *place = sum.sum;
  *error = sum.error;
}
__device__ __forceinline__ void fold_states(const SsmArguments& args, int which, const Channel& mine, State (&x)[STATES],
                                            bool first) {
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    int place = which + own_state(s) * PARTS;
    if (mine.exists && own_state(s) < D_STATE) {
      fold(args, place, mine, x[s].re, first);
#if HAS_COMPLEX_A
      fold(args, place + 1, mine, x[s].im, first);
#endif
    }
    x[s] = {};
  }
}
__device__ __forceinline__ void fold_time_sums(const SsmArguments& args, const Channel& mine, Backward& state, bool first) {
  fold_states(args, 0, mine, state.dA, first);
#if HAS_CONSTANT_B
  fold_states(args, CHANNEL_B, mine, state.dB, first);
#endif
#if HAS_CONSTANT_C
  fold_states(args, CHANNEL_C, mine, state.dC, first);
#endif
  if (mine.exists && state_lane() == 0) {
    fold(args, CHANNEL_D, mine, state.dD, first);
    fold(args, CHANNEL_D + 1, mine, state.ddelta_bias, first);
  }
  state.dD = state.ddelta_bias = 0.0f;
}

#if !HAS_CONSTANT_B || !HAS_CONSTANT_C
// dB and dC of the `count` tokens from t on: the warps' sums, as partial sums of the block. A block that takes several ranges
// of channels adds them up.
__device__ __forceinline__ void write_token_sums(const SsmArguments& args, const SequenceItem& item, int t, int count,
                                                 const ChannelRange& range, bool add) {
  int64 token = item.row * args.seqlen + item.start + t;
  unsigned block = blockIdx.x % unsigned(args.blocks_per_group);
  for (int k = threadIdx.x; k < count * TOKEN_FLOATS; k += BLOCK) {
    int j = k / TOKEN_FLOATS, column = k % TOKEN_FLOATS;
    float sum = 0.0f;
    for (int warp = 0; warp < WARPS; ++warp) sum += warp_sums(warp, j)[column];
    int64 place = ((token + j) * args.groups + range.group) * args.blocks_per_group + block;
    float* partial = args.partial_bc + place * TOKEN_FLOATS + column;
    *partial = add ? *partial + sum : sum;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS) ssm_pack_bwd(const SsmArguments args) {
#if !HAS_CONSTANT_B || !HAS_CONSTANT_C
  bool add = false;
#endif
  for (ChannelRange range = block_channels(args); range.begin < range.end; range = next_channels(args, range)) {
    Channel mine = own_channel(args, range);
    Backward state = {};
    fold_time_sums(args, mine, state, true);
    int not_folded = 0;  // tokens
    for (int64 index = blockIdx.y; index < *args.item_count; index += gridDim.y) {
      SequenceItem item = args.items[index];
      if (item.slot < 0) {
        write_zeros(args.du, item, mine);
        write_zeros(args.ddelta, item, mine);
#if HAS_Z
        write_zeros(args.dz, item, mine);
#endif
        continue;
      }
#pragma unroll
      for (int s = 0; s < STATES; ++s) state.carry[s] = {};
#if HAS_FINAL_STATES
      load_states(args.dfinal_states + state_place(args, item, mine), mine.exists, state.carry);
#endif
      for (int first = (item.length - 1) / STEP_TOKENS * STEP_TOKENS; first >= 0 && item.length > 0; first -= STEP_TOKENS) {
        int known = first / CHECKPOINT_TOKENS * CHECKPOINT_TOKENS;
        int count = item.length - first < STEP_TOKENS ? item.length - first : STEP_TOKENS;
        State h[STATES];
        if (known > 0) {
          load_states(checkpoint_place(args, item, known, mine), mine.exists, h);
        } else {
          first_states(args, item, mine, h);
        }
#pragma unroll 1
        for (int t = known; t < first + count; ++t) {
          if (t >= first) {
#pragma unroll
            for (int s = 0; s < STATES; ++s) store_state(place_before(t - first, s), h[s]);
          }
          if (t + 1 < first + count) advance(args, item, t, range.group, mine, h);
        }
#pragma unroll 1
        for (int j = count - 1; j >= 0; --j) step_back(args, item, first + j, j, range.group, mine, state);
#if !HAS_CONSTANT_B || !HAS_CONSTANT_C
        sync_block();  // the sums of all warps are there
        write_token_sums(args, item, first, count, range, add);
        sync_block();  // and have been read
#endif
        not_folded += count;
        if (not_folded >= FOLD_TOKENS) {
          fold_time_sums(args, mine, state, false);
          not_folded = 0;
        }
      }
#if HAS_INITIAL_STATES
      store_states(args.dinitial_states + state_place(args, item, mine), mine.exists, state.carry);
#endif
    }
    fold_time_sums(args, mine, state, false);
#if !HAS_CONSTANT_B || !HAS_CONSTANT_C
    add = true;
#endif
  }
}

#if !HAS_CONSTANT_B || !HAS_CONSTANT_C
// dB and dC of tokens: the channel blocks' partial sums, first block first. Padding tokens have none and get 0.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_bc(const SsmArguments args) {
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= args.batch * args.seqlen * args.groups * TOKEN_FLOATS) return;
  int64 column = index % TOKEN_FLOATS, group = index / TOKEN_FLOATS % args.groups, place = index / TOKEN_FLOATS / args.groups;
  CompensatedSum sum = {0.0f, 0.0f};
  if (args.run_index[place] >= 0) {
    const float* partial = args.partial_bc + (place * args.groups + group) * args.blocks_per_group * TOKEN_FLOATS + column;
    for (int64 block = 0; block < args.blocks_per_group; ++block) sum.add(partial[block * TOKEN_FLOATS]);
  }
  const View4& view = column < TOKEN_B ? args.dB : args.dC;
  int64 row = place / args.seqlen, token = place % args.seqlen;
  static_cast<Element*>(view.data)[row * view.batch + token * view.token + group * view.group +
                                   column % STATE_FLOATS * view.state] = from_float(sum.sum);
}
#endif

// dA, dD, ddelta_bias, and dB and dC where those are constant: the item blocks' partial sums, first block first.
extern "C" __global__ void __launch_bounds__(SUM_BLOCK) ssm_pack_bwd_sum_channels(const SsmArguments args) {
  int64 sums = args.dim * CHANNEL_FLOATS;
  int64 index = int64(blockIdx.x) * SUM_BLOCK + threadIdx.x;
  if (index >= sums) return;
  CompensatedSum sum = {0.0f, 0.0f};
  for (int64 block = 0; block < args.item_blocks; ++block) sum.add(args.partial_channels[2 * block * sums + index]);
  int64 channel = index % args.dim;
  int which = int(index / args.dim);
  int64 place = parameter_place(channel) + which % STATE_FLOATS;  // of the sums that a state has
  if (which < CHANNEL_B) {
    args.dA[place] = sum.sum;
  } else if (which < CHANNEL_C) {
#if HAS_CONSTANT_B
    static_cast<float*>(args.dB.data)[place] = sum.sum;
#endif
  } else if (which < CHANNEL_D) {
#if HAS_CONSTANT_C
    static_cast<float*>(args.dC.data)[place] = sum.sum;
#endif
  } else if (which == CHANNEL_D) {
#if HAS_D
    args.dD[channel] = sum.sum;
#endif
  } else {
#if HAS_DELTA_BIAS
    args.ddelta_bias[channel] = sum.sum;
#endif
  }
}
