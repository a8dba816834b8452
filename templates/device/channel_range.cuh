#pragma once
#include "ssm_arguments.cuh"
// The channels of a block all read the same B and C: blocks are laid out group after group. Where a group has more channels
// than its blocks take at once, each block goes on by the number of blocks.
struct ChannelRange {
  int group, begin, end, group_end;
};
__device__ __forceinline__ ChannelRange channels_from(int group, int64 begin, int64 group_end) {
  return {group, int(begin), int(begin + CHANNELS < group_end ? begin + CHANNELS : group_end), int(group_end)};
}
__device__ __forceinline__ ChannelRange block_channels(const SsmArguments& args) {
#if GROUPS == MANY
  int64 per_group = args.dim / args.groups;
  unsigned blocks = args.blocks_per_group, group = blockIdx.x / blocks;
  return channels_from(group, group * per_group + blockIdx.x % blocks * CHANNELS, (group + 1) * per_group);
#else
  return channels_from(0, int64(blockIdx.x) * CHANNELS, args.dim);
#endif
}
__device__ __forceinline__ ChannelRange next_channels(const SsmArguments& args, const ChannelRange& range) {
  return channels_from(range.group, range.begin + args.blocks_per_group * CHANNELS, range.group_end);
}
