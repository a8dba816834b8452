#pragma once
#include "conv_arguments.cuh"
#include "number.cuh"
// How the work of conv1d_pack is divided. A tile is TILE_TOKENS consecutive tokens of one row; a thread walks one tile
// of VECTOR channels. A block takes BLOCK_TILES tiles of BLOCK / BLOCK_TILES vectors of channels: neighbouring threads
// have neighbouring vectors or, where tokens lie side by side, neighbouring tiles.
constexpr int BLOCK_VECTORS = BLOCK / BLOCK_TILES;
#if LAYOUT == CHANNEL_MAJOR
constexpr int TILE_STRIDE = 1;  // threads from one tile to the next
#else
constexpr int TILE_STRIDE = BLOCK_VECTORS;
#endif

struct ConvTile {
  bool exists;        // the last blocks may have more threads than work
  int lane;           // which tile of the block
  int64 group;        // which BLOCK_TILES tiles
  int64 channel;      // the first of VECTOR
  int64 row, begin;   // where the first token is
  int tokens, after;  // tokens of the tile; tokens of the row behind it, counted up to W-1
};

__device__ __forceinline__ int64 tiles_per_row(const ConvArguments& args) {
  return (args.seqlen + TILE_TOKENS - 1) / TILE_TOKENS;
}
__device__ __forceinline__ int64 tile_groups(const ConvArguments& args) {
  return (tiles_per_row(args) * args.batch + BLOCK_TILES - 1) / BLOCK_TILES;
}

// How far the grid's second dimension would have to reach; a block takes every gridDim.y-th turn.
__device__ __forceinline__ int64 conv_turns(const ConvArguments& args) {
#if LAYOUT == CHANNEL_MAJOR
  return (args.dim + BLOCK_VECTORS * VECTOR - 1) / (BLOCK_VECTORS * VECTOR);
#else
  return tile_groups(args);
#endif
}

__device__ __forceinline__ ConvTile conv_tile(const ConvArguments& args, int64 turn) {
  ConvTile tile;
  int thread = int(threadIdx.x);
  tile.lane = thread / TILE_STRIDE % BLOCK_TILES;
#if LAYOUT == CHANNEL_MAJOR
  tile.group = blockIdx.x;
  tile.channel = (turn * BLOCK_VECTORS + thread / BLOCK_TILES) * VECTOR;
#else
  tile.group = turn;
  tile.channel = (int64(blockIdx.x) * BLOCK_VECTORS + thread % BLOCK_VECTORS) * VECTOR;
#endif
  int64 number = tile.group * BLOCK_TILES + tile.lane;
  tile.row = number / tiles_per_row(args);
  tile.begin = number % tiles_per_row(args) * TILE_TOKENS;
  int64 left = args.seqlen - tile.begin;
  tile.tokens = left < TILE_TOKENS ? int(left) : TILE_TOKENS;
  left -= tile.tokens;
  tile.after = left < CONV_WIDTH - 1 ? int(left) : CONV_WIDTH - 1;
  tile.exists = tile.row < args.batch && tile.channel < args.dim;
  return tile;
}
