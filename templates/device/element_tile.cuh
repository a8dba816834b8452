#pragma once
#include "number.cuh"
#include "ssm_tile.cuh"
// Tiles of activations in shared memory, in the type and order that they have in global memory. The block's threads move them
// together, VECTOR neighbours at a time, each thread the same places of every tile: so a thread may fill a tile again as soon as
// it has itself written out what it found there.

// An index in 64 bits. It is not negative: an upper half of zero makes its product with a stride cheaper than one of signs.
__device__ __forceinline__ int64 widen(int index) { return int64(unsigned(index)); }

// A row of tokens ends with a gap, so that lanes that look at different tokens, or channels, meet different banks.
#if LAYOUT == CHANNEL_MAJOR
constexpr int TOKEN_STEP = 1, CHANNEL_STEP = TILE_TOKENS + 1;
constexpr int TILE_ELEMENTS = CHANNELS * CHANNEL_STEP;
#else
constexpr int TOKEN_STEP = CHANNELS + (LANES > 1 ? VECTOR : 0), CHANNEL_STEP = 1;
constexpr int TILE_ELEMENTS = TILE_TOKENS * TOKEN_STEP;
#endif
constexpr int ROOM = (TILE_ELEMENTS + 7) / 8 * 8;  // elements that a tile takes, so that the next one is aligned
constexpr int PACKS = TILE_TOKENS * CHANNELS / VECTOR;
constexpr int ROUNDS = (PACKS + BLOCK - 1) / BLOCK;  // packs that a thread moves
constexpr int UNROLLED_ROUNDS = ROUNDS < 4 ? ROUNDS : 4;

// Calls move(place in the tile, token of the row, channel) for each pack of the thread that exists.
template <typename Move>
__device__ __forceinline__ void for_each_pack(const SequenceItem& item, int base, const ChannelRange& range, Move move) {
  TilePlace first = tile_place(threadIdx.x);
  int tokens = item.length - base - first.token, channels = range.end - range.begin - first.channel;
  int place = first.token * TOKEN_STEP + first.channel * CHANNEL_STEP;
#pragma unroll UNROLLED_ROUNDS
  for (int round = 0; round < ROUNDS; ++round) {
    TilePlace step = tile_place(round * BLOCK);  // sizes are powers of two: places add up
    if (PACKS < BLOCK && threadIdx.x >= PACKS) break;
    if (step.token >= tokens || step.channel >= channels) continue;
    move(place + step.token * TOKEN_STEP + step.channel * CHANNEL_STEP,
         widen(item.start + base + first.token + step.token), widen(range.begin + first.channel + step.channel));
  }
}
__device__ __forceinline__ void fetch_pack(Element* to, const View3& view, const SequenceItem& item, int64 token,
                                           int64 channel) {
  fetch<VECTOR * sizeof(Element)>(to, element_at(view, widen(item.row), token, channel));
}
__device__ __forceinline__ void write_pack(const View3& view, const SequenceItem& item, int64 token, int64 channel,
                                           const Element* from) {
  copy_pack(output_at(view, widen(item.row), token, channel), from);
}
