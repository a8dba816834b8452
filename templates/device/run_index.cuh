#pragma once
#include "conv_arguments.cuh"
// How many tokens before a token are in its run, and which state the run has, from the map as it is stored. A count that
// the storage cannot hold is 32 or more, which is farther back than any filter reaches.

#if MAP == OFFSETS || MAP == BITS || MAP == POSITIONS16
// The last stretch that begins at the token or before it; empty ones begin where the next one does.
__device__ __forceinline__ SequenceItem stretch_of(const ConvArguments& args, int64 row, int64 t) {
  int64 low = 0, high = *args.stretch_count;
  while (high - low > 1) {
    int64 middle = low + (high - low) / 2;
    SequenceItem item = args.stretches[middle];
    if (item.row < row || (item.row == row && item.start <= t)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return args.stretches[low];
}
#endif

// -1 for padding.
__device__ __forceinline__ int run_index(const ConvArguments& args, int64 row, int64 t) {
  int64 place = row * args.seqlen + t;
#if MAP == POSITIONS
  return static_cast<const int*>(args.run_index)[place];
#elif MAP == POSITIONS16
  int index = static_cast<const uint16*>(args.run_index)[place];
  return index == 65535 ? -1 : index;
#elif MAP == BITS
  const RunBits* words = static_cast<const RunBits*>(args.run_index);
  RunBits word = words[place / 32];
  int bit = int(place % 32);
  if (word.padding >> bit & 1) return -1;
  // The 32 tokens up to this one, this one in the highest bit. The first word of all has no word before it.
  uint32 before = place >= 32 ? words[place / 32 - 1].starts : 0;
  uint32 starts = bit == 31 ? word.starts : word.starts << (31 - bit) | before >> (bit + 1);
  return leading_zeros(starts);
#else
  SequenceItem stretch = stretch_of(args, row, t);
  return stretch.slot < 0 ? -1 : int(t - stretch.start);
#endif
}

// -1 for padding.
__device__ __forceinline__ int64 slot_of(const ConvArguments& args, int64 row, int64 t) {
#if MAP == POSITIONS
  return args.slot[row * args.seqlen + t];
#else
  return stretch_of(args, row, t).slot;
#endif
}
