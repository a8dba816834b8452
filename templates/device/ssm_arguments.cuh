#pragma once
#include "sequence_map.cuh"
#include "views.cuh"

// The one argument of the kernels of ssm_pack. Pointers that an operator does not have are null.
struct SsmArguments {
  View3 u, delta, z, out, dout, du, ddelta, dz;
  View4 B, C, dB, dC;
  const float *A, *D, *delta_bias;        // (dim, d_state), (dim), (dim)
  const float *initial_states;            // (n_sequences, dim, d_state)
  const float *dfinal_states;             // the same shape
  float *final_states, *dinitial_states;  // the same shape
  float *dA, *dD, *ddelta_bias;           // (dim, d_state), (dim), (dim)
  float* checkpoints;                     // (n_checkpoints, dim, d_state): states inside sequences, see place_inside
  float* segment_states;                  // (n_boundaries, dim, d_state): states at the boundaries between segments
  float* segment_gradients;               // the same for a * g
  float* segment_dt;                      // (n_boundaries, dim): sums of dt over the segment before; see checkpoint_dt
  float* partial_bc;                      // dB and dC, summed over one block's channels
  float* partial_channels;                // dA, dD and ddelta_bias, summed over one block's tokens
  const int* run_index;                   // (batch, seqlen): index inside the run, -1 for padding
  const SequenceItem* items;
  const int* item_count;                  // in device memory: the host may not know it
  long long batch, seqlen, dim, groups;
  long long blocks_per_group;             // channel blocks of one group
  long long item_blocks;                  // blocks that share the items
};
