#pragma once
#include "sequence_map.cuh"

// The rules that boundaries can break. What `place`, `found` and `previous` of a MapViolation are, stands beside each.
enum class MapRule : int {
  none,
  above_saturation,    // token; its position
  jump,                // token; its position; the one before, -1 where that is padding
  first_offset,        // offset 0; its value
  last_offset,         // the last offset; its value
  falling_offset,      // offset; its value; the one before
  offset_beyond,       // offset; its value
  crosses_row,         // offset; its value, where the sequence ends; where it begins
  too_many_sequences,  // unused; how many there are
  too_long,            // the sequence's first token; its length
};
struct MapViolation {
  MapRule rule;
  long long place;  // a token, counted over all rows, or an offset
  long long found, previous;
};

// What is known of a map besides the map itself, in device memory.
struct MapSummary {
  int items, segments;             // SequenceItems in use; operators read them there
  long long stretches, sequences;  // items without the unused slots; those that are no padding
  MapViolation violation;          // the first one since the host last looked
};

// Of one tile of tokens, or of offsets.
struct MapTile {
  long long stretches, sequences;  // that begin in it; after the scan, in all tiles before it
  long long broken;                // the first place that breaks a rule, NO_PLACE if none does
};

// The one argument of the kernels of sequence_map.
struct MapArguments {
  const void* values;                    // (batch, seqlen) positions or labels, or the offsets; null for rows
  long long batch, seqlen;
  long long offset_sequences;            // sequences that offsets or rows say
  long long max_sequences, max_seqlen;
  long long most_stretches;              // room for items, and for stretches
  long long tile_count;
  void* run_index;                       // of each token, as operators read them
  int* slot;                             // (batch, seqlen); of map = positions only
  SequenceItem* items;                   // most_stretches
  SequenceItem* segments;                // the items, long sequences in segments; see segments in sequence_map.hpp
  SequenceItem* stretches;               // most_stretches, in the order of their first token
  MapSummary* summary;
  // Scratch memory.
  SequenceItem* other_items;             // the other side of each pass of the sort
  MapTile* tiles;
};
