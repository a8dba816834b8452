#pragma once
#include "sequence_map.cuh"
#include "views.cuh"

// The one argument of the kernels of conv1d_pack. Pointers that an operator does not have are null.
struct ConvArguments {
  View3 x, out, dout, dx;
  const void *weight, *bias;              // (dim, conv_width), (dim)
  const void *initial_states;             // (n_sequences, dim, conv_width - 1), oldest input first
  const void *dfinal_states;              // the same shape
  void *final_states, *dinitial_states;   // the same shape
  float *dweight, *dbias;                 // (dim, conv_width), (dim)
  float* partial;                         // (groups of tiles, conv_width + 1, dim): sums over a group's tokens
  const void* run_index;                  // of each token, as the field `map` says; see run_index.cuh
  const int* slot;                        // (batch, seqlen): which state, -1 for padding; of map = positions only
  const SequenceItem* stretches;          // in the order of their first token
  const long long* stretch_count;
  const SequenceItem* items;
  const int* item_count;                  // in device memory: the host may not know it
  long long batch, seqlen, dim;
};
