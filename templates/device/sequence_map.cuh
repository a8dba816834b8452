#pragma once
// Tokens of a segment, where long sequences are cut into segments.
inline constexpr int SEGMENT_TOKENS = 1024;

// One stretch of consecutive tokens of one row, the unit of work of the scans: a sequence (slot >= 0), or padding
// (slot == -1), whose outputs and gradients are zero. A sequence may be empty (length 0): its final state is its
// initial state.
struct SequenceItem {
  int row;
  int start;   // first token in the row
  int length;  // tokens
  int slot;    // which state; -1 for padding
};

// 32 tokens in the order of memory, one a bit, the lowest first: those that begin a sequence, and padding.
struct RunBits {
  unsigned starts, padding;
};
