#pragma once
// Tensors by address and strides. Strides count elements and may be anything, so every offset is a 64-bit product.

// (batch, seqlen, dim)
struct View3 {
  void* data;
  long long batch, token, channel;
};
// (batch, seqlen, groups, d_state)
struct View4 {
  void* data;
  long long batch, token, group, state;
};
