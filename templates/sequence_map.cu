// The map of a batch's sequences, built from boundaries in device memory without asking the host.
//
// A stretch is a longest range of tokens of one row that belong together: a sequence, or padding. Whether a stretch
// begins at a token is seen from that token and the one before, so stretches are numbered by prefix sums, in the order
// of their first token:
//
//   count      each tile of BLOCK tokens: how many stretches and sequences begin in it, and the first broken rule
//   scan       how many begin in all tiles before
//   stretches  first token and slot of each stretch
//   order      one work item a stretch, longest first, by a stable radix sort; then the unused slots, which are empty
//              sequences; the items once more, long ones cut in segments; the rules that need whole stretches
//   tokens     each token finds its stretch by bisection: its slot and its index there, stored as the field `map` says
//
// Offsets and rows say their stretches, so they begin with the third step. Sums and sorting have a fixed order, so the
// same boundaries give the same map. Boundaries that break a rule leave a record of the first violation and a map in
// which every row is padding: outputs are zero and states pass through.
#include "device/parameters.cuh"
#include "device/primitives.cuh"
#include "device/sequence_map_arguments.cuh"

#if INDEX == INT16
typedef short Index;
#elif INDEX == UINT16
typedef unsigned short Index;
#elif INDEX == INT32
typedef int Index;
#else
typedef long long Index;
#endif
constexpr int64 NO_PLACE = 0x7fffffffffffffffLL;

// --- sums over a block --------------------------------------------------------------------------------------------

// The sum of x over the threads before this one, and over all threads.
__device__ __forceinline__ int64 sum_before(int64 x, int64& total) {
  int64* sums = reinterpret_cast<int64*>(shared_memory());
  int thread = int(threadIdx.x);
  sums[thread] = x;
  sync_block();
  for (int distance = 1; distance < BLOCK; distance *= 2) {
    int64 left = thread >= distance ? sums[thread - distance] : 0;
    sync_block();
    sums[thread] += left;
    sync_block();
  }
  total = sums[BLOCK - 1];
  int64 before = thread > 0 ? sums[thread - 1] : 0;
  sync_block();  // the next use may overwrite them
  return before;
}

// The smallest x of all threads.
__device__ __forceinline__ int64 smallest(int64 x) {
  int64* values = reinterpret_cast<int64*>(shared_memory());
  int thread = int(threadIdx.x);
  values[thread] = x;
  sync_block();
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    if (thread < half && values[thread + half] < values[thread]) values[thread] = values[thread + half];
    sync_block();
  }
  int64 result = values[0];
  sync_block();
  return result;
}

// Which part of `count` things a thread takes when each thread takes neighbours.
struct Part {
  int64 begin, end;
};
__device__ __forceinline__ Part part_of(int64 count) {
  int64 each = (count + BLOCK - 1) / BLOCK;
  int64 begin = threadIdx.x * each < count ? threadIdx.x * each : count;
  return {begin, begin + each < count ? begin + each : count};
}

// --- boundaries ---------------------------------------------------------------------------------------------------

#if FORM == POSITION_INDICES || FORM == SEQ_IDX
// Positions of 16 bits stop rising here; wider ones never do (0).
#if INDEX == INT16
constexpr int64 SATURATION = 32766;
#elif INDEX == UINT16
constexpr int64 SATURATION = 65534;
#else
constexpr int64 SATURATION = 0;
#endif

// A position or label, -1 for padding.
__device__ __forceinline__ int64 value_at(const MapArguments& args, int64 place) {
  int64 value = static_cast<const Index*>(args.values)[place];
#if INDEX == UINT16
  if (value == 65535) value = -1;
#endif
  return value < 0 ? -1 : value;
}

struct Token {
  int row, start;         // where in its row
  int64 value, previous;  // -1 for padding; a row begins as if padding came before
  bool starts;            // a stretch begins here
  bool broken;            // a rule that shows in these two values is
};
__device__ __forceinline__ Token token_at(const MapArguments& args, int64 place) {
  Token token;
  token.row = int(place / args.seqlen);
  token.start = int(place - token.row * args.seqlen);
  token.value = value_at(args, place);
  token.previous = token.start == 0 ? -1 : value_at(args, place - 1);
  bool goes_on = token.value < 0 && token.previous < 0;
#if FORM == POSITION_INDICES
  if (token.value >= 0 && token.previous >= 0) {
    bool saturated = SATURATION > 0 && token.previous == SATURATION;
    goes_on = saturated ? token.value == SATURATION : token.value - 1 == token.previous;
  }
  // What follows padding may be the row's first sequence, which is for a later step to see.
  bool jumps = token.value > 0 && token.previous >= 0 && !goes_on;
  token.broken = jumps || (SATURATION > 0 && token.value > SATURATION);
#else
  if (token.value >= 0) goes_on = token.value == token.previous;
  token.broken = false;
#endif
  token.starts = token.start == 0 || !goes_on;
  return token;
}

__device__ __forceinline__ MapViolation violation_at(const MapArguments& args, int64 place) {
  Token token = token_at(args, place);
  bool above = SATURATION > 0 && token.value > SATURATION;
  return {above ? MapRule::above_saturation : MapRule::jump, place, token.value, token.previous};
}
#elif FORM == CU_SEQLENS
__device__ __forceinline__ int64 offset_at(const MapArguments& args, int64 place) {
  return static_cast<const Index*>(args.values)[place];
}

// An empty sequence behind the last token stays in the last row, at its end.
__device__ __forceinline__ int64 row_of_offset(const MapArguments& args, int64 begin) {
  int64 row = begin / args.seqlen;
  return row < args.batch - 1 ? row : args.batch - 1;
}

// Of the sequence that ends at offset `place` and begins in `row`; of the first and the last offset for place 0.
__device__ __forceinline__ MapViolation violation_at(const MapArguments& args, int64 place, int64 row) {
  int64 tokens = args.batch * args.seqlen;
  if (place == 0) {
    int64 first = offset_at(args, 0), last = offset_at(args, args.offset_sequences);
    if (first != 0) return {MapRule::first_offset, 0, first, 0};
    if (last != tokens) return {MapRule::last_offset, args.offset_sequences, last, 0};
    return {MapRule::none, 0, 0, 0};
  }
  int64 begin = offset_at(args, place - 1), end = offset_at(args, place);
  MapRule rule = end < begin                        ? MapRule::falling_offset
                 : end > tokens                     ? MapRule::offset_beyond
                 : end > (row + 1) * args.seqlen ? MapRule::crosses_row
                                                    : MapRule::none;
  return {rule, place, end, begin};
}
#endif

// --- stretches ----------------------------------------------------------------------------------------------------

#if FORM == POSITION_INDICES || FORM == SEQ_IDX
extern "C" __global__ void __launch_bounds__(BLOCK) sequence_map_count(const MapArguments args) {
  int64 place = int64(blockIdx.x) * BLOCK + threadIdx.x;
  Token token = {0, 0, -1, -1, false, false};
  if (place < args.batch * args.seqlen) token = token_at(args, place);
  MapTile tile;
  sum_before(token.starts, tile.stretches);
  sum_before(token.starts && token.value >= 0, tile.sequences);
  tile.broken = smallest(token.broken ? place : NO_PLACE);
  if (threadIdx.x == 0) args.tiles[blockIdx.x] = tile;
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) sequence_map_scan(const MapArguments args) {
  Part part = part_of(args.tile_count);
  int64 stretches = 0, sequences = 0;
  for (int64 i = part.begin; i < part.end; ++i) {
    stretches += args.tiles[i].stretches;
    sequences += args.tiles[i].sequences;
  }
  int64 all_stretches, all_sequences;
  stretches = sum_before(stretches, all_stretches);
  sequences = sum_before(sequences, all_sequences);
  for (int64 i = part.begin; i < part.end; ++i) {
    MapTile& tile = args.tiles[i];
    int64 own_stretches = tile.stretches, own_sequences = tile.sequences;
    tile.stretches = stretches;
    tile.sequences = sequences;
    stretches += own_stretches;
    sequences += own_sequences;
  }
  if (threadIdx.x == 0) {
    args.summary->stretches = all_stretches;
    args.summary->sequences = all_sequences;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) sequence_map_stretches(const MapArguments args) {
  int64 place = int64(blockIdx.x) * BLOCK + threadIdx.x;
#if FORM == POSITION_INDICES || FORM == SEQ_IDX
  Token token = {0, 0, -1, -1, false, false};
  if (place < args.batch * args.seqlen) token = token_at(args, place);
  bool real = token.value >= 0;
  int64 total;
  int64 stretch = args.tiles[blockIdx.x].stretches + sum_before(token.starts, total);
  int64 slot = args.tiles[blockIdx.x].sequences + sum_before(token.starts && real, total);
  // There can be too many of them only where there are more sequences than the caller said.
  if (token.starts && stretch < args.most_stretches) {
    args.stretches[stretch] = {token.row, token.start, 0, real ? int(slot) : -1};
  }
#else
  bool exists = place < args.offset_sequences;
#if FORM == CU_SEQLENS
  // A thread looks at the end of its sequence; the first one at the first and the last offset, too.
  int64 broken = NO_PLACE;
  if (exists) {
    int64 begin = offset_at(args, place);
    int64 row = row_of_offset(args, begin);
    args.stretches[place] = {int(row), int(begin - row * args.seqlen), 0, int(place)};
    if (violation_at(args, place + 1, row).rule != MapRule::none) broken = place + 1;
  }
  if (place == 0 && violation_at(args, 0, 0).rule != MapRule::none) broken = 0;
  broken = smallest(broken);
  if (threadIdx.x == 0) args.tiles[blockIdx.x].broken = broken;
#else
  if (exists) args.stretches[place] = {int(place), 0, 0, int(place)};
  if (threadIdx.x == 0) args.tiles[blockIdx.x].broken = NO_PLACE;
#endif
  if (place == 0) args.summary->stretches = args.summary->sequences = args.offset_sequences;
#endif
}

// --- order --------------------------------------------------------------------------------------------------------

// Tokens up to the next stretch of the row, or to its end.
__device__ __forceinline__ int length_of(const MapArguments& args, int64 stretch, int64 stretches) {
  SequenceItem own = args.stretches[stretch];
  if (stretch + 1 < stretches) {
    SequenceItem next = args.stretches[stretch + 1];
    if (next.row == own.row) return next.start - own.start;
  }
  return int(args.seqlen) - own.start;
}

// The first token of a stretch, counted over all rows.
__device__ __forceinline__ int64 place_of(const MapArguments& args, int64 stretch) {
  return args.stretches[stretch].row * args.seqlen + args.stretches[stretch].start;
}

// The first violation of the batch, seen by all threads of the one block. Rules that single places break come first,
// since lengths and numbers mean little where one is broken.
__device__ __forceinline__ MapViolation first_violation(const MapArguments& args) {
  int64 stretches = args.summary->stretches < args.most_stretches ? args.summary->stretches : args.most_stretches;
  int64 sequences = args.summary->sequences;
  int64 broken = NO_PLACE;
  for (int64 i = threadIdx.x; i < args.tile_count; i += BLOCK) {
    if (args.tiles[i].broken < broken) broken = args.tiles[i].broken;
  }
#if FORM == POSITION_INDICES
  // A sequence behind padding may go on from elsewhere only where it is the first of its row.
  for (int64 i = threadIdx.x + 1; i < stretches; i += BLOCK) {
    SequenceItem before = args.stretches[i - 1], own = args.stretches[i];
    if (own.slot < 0 || own.start == 0 || before.slot >= 0 || before.start == 0) continue;
    int64 place = place_of(args, i);
    if (place < broken && value_at(args, place) > 0) broken = place;
  }
#endif
  broken = smallest(broken);
#if FORM == CU_SEQLENS
  if (broken != NO_PLACE) return violation_at(args, broken, broken > 0 ? args.stretches[broken - 1].row : 0);
#elif FORM != ROWS
  if (broken != NO_PLACE) return violation_at(args, broken);
#endif
  if (sequences > args.max_sequences) return {MapRule::too_many_sequences, 0, sequences, 0};
  int64 too_long = NO_PLACE;
  for (int64 i = threadIdx.x; i < stretches; i += BLOCK) {
    bool longer = args.stretches[i].slot >= 0 && length_of(args, i, stretches) > args.max_seqlen;
    if (longer && i < too_long) too_long = i;
  }
  too_long = smallest(too_long);
  if (too_long == NO_PLACE) return {MapRule::none, 0, 0, 0};
  return {MapRule::too_long, place_of(args, too_long), length_of(args, too_long, stretches), 0};
}

// One pass of a radix sort by length, longest first, that keeps the order of items with equal digits. Each thread takes
// neighbouring items; counts[digit][thread] becomes the place of its next item with that digit.
__device__ __forceinline__ void sort_pass(const SequenceItem* from, SequenceItem* to, int64 items, int shift) {
  constexpr int kDigits = 1 << DIGIT_BITS;
  int* counts = reinterpret_cast<int*>(shared_memory() + BLOCK * sizeof(int64));
  int thread = int(threadIdx.x);
  Part part = part_of(items);
  for (int digit = 0; digit < kDigits; ++digit) counts[digit * BLOCK + thread] = 0;
  for (int64 i = part.begin; i < part.end; ++i) {
    int digit = kDigits - 1 - (from[i].length >> shift) % kDigits;
    ++counts[digit * BLOCK + thread];
  }
  sync_block();
  int sum = 0;
  for (int i = 0; i < kDigits; ++i) sum += counts[thread * kDigits + i];
  int64 total;
  int before = int(sum_before(sum, total));
  for (int i = 0; i < kDigits; ++i) {
    int own = counts[thread * kDigits + i];
    counts[thread * kDigits + i] = before;
    before += own;
  }
  sync_block();
  for (int64 i = part.begin; i < part.end; ++i) {
    int digit = kDigits - 1 - (from[i].length >> shift) % kDigits;
    to[counts[digit * BLOCK + thread]++] = from[i];
  }
  sync_block();
}

// The items again, long sequences cut into segments. Gives their number.
__device__ __forceinline__ int64 write_segments(const MapArguments& args, int64 items) {
  Part part = part_of(items);
  int64 own = 0, total;
  for (int64 i = part.begin; i < part.end; ++i) {
    SequenceItem item = args.items[i];
    own += item.slot >= 0 && item.length > 0 ? (item.length - 1) / SEGMENT_TOKENS + 1 : 1;
  }
  int64 place = sum_before(own, total);
  for (int64 i = part.begin; i < part.end; ++i) {
    SequenceItem item = args.items[i];
    while (item.slot >= 0 && item.length > SEGMENT_TOKENS) {
      args.segments[place++] = {item.row, item.start, SEGMENT_TOKENS, item.slot};
      item.start += SEGMENT_TOKENS;
      item.length -= SEGMENT_TOKENS;
    }
    args.segments[place++] = item;
  }
  return total;
}

// One block.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) sequence_map_order(const MapArguments args) {
  MapViolation violation = first_violation(args);
  int64 stretches = args.summary->stretches, sequences = args.summary->sequences;
  sync_block();
  if (violation.rule != MapRule::none) {
    stretches = args.batch;
    sequences = 0;
    for (int64 row = threadIdx.x; row < args.batch; row += BLOCK) args.stretches[row] = {int(row), 0, 0, -1};
    sync_block();
  }

  int64 longest = 0;
  for (int64 i = threadIdx.x; i < stretches; i += BLOCK) {
    int length = length_of(args, i, stretches);
    longest = length > longest ? length : longest;
  }
  longest = -smallest(-longest);
  int passes = 0;
  while (longest >> passes * DIGIT_BITS > 0) ++passes;
  SequenceItem* from = passes % 2 == 0 ? args.items : args.other_items;
  SequenceItem* to = passes % 2 == 0 ? args.other_items : args.items;
  for (int64 i = threadIdx.x; i < stretches; i += BLOCK) {
    int length = length_of(args, i, stretches);
    args.stretches[i].length = length;
    from[i] = args.stretches[i];
  }
  sync_block();
  for (int pass = 0; pass < passes; ++pass) {
    sort_pass(from, to, stretches, pass * DIGIT_BITS);
    SequenceItem* other = from;
    from = to;
    to = other;
  }

  int64 unused = args.max_sequences - sequences;
  for (int64 i = threadIdx.x; i < unused; i += BLOCK) {
    args.items[stretches + i] = {int(args.batch - 1), int(args.seqlen), 0, int(sequences + i)};
  }
  sync_block();
  int64 segments = write_segments(args, stretches + unused);
  if (threadIdx.x == 0) {
    args.summary->segments = int(segments);
    args.summary->items = int(stretches + unused);
    args.summary->stretches = stretches;
    args.summary->sequences = sequences;
    if (args.summary->violation.rule == MapRule::none) args.summary->violation = violation;
  }
}

// --- tokens -------------------------------------------------------------------------------------------------------

#if MAP != OFFSETS
// The last stretch that begins at the token or before it. Empty ones begin where the next one does.
__device__ __forceinline__ int64 stretch_at(const MapArguments& args, int64 place) {
  int64 low = 0, high = args.summary->stretches;
  while (high - low > 1) {
    int64 middle = low + (high - low) / 2;
    if (place_of(args, middle) <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A thread writes one token, or the 32 of one word.
extern "C" __global__ void __launch_bounds__(BLOCK) sequence_map_tokens(const MapArguments args) {
  int64 tokens = args.batch * args.seqlen;
  int64 thread = int64(blockIdx.x) * BLOCK + threadIdx.x;
#if MAP == BITS
  if (thread * 32 >= tokens) return;
  int64 stretches = args.summary->stretches, stretch = stretch_at(args, thread * 32);
  RunBits word = {0, 0};
  for (int bit = 0; bit < 32 && thread * 32 + bit < tokens; ++bit) {
    int64 place = thread * 32 + bit;
    while (stretch + 1 < stretches && place_of(args, stretch + 1) <= place) ++stretch;
    bool padding = args.stretches[stretch].slot < 0;
    if (padding) word.padding |= 1u << bit;
    if (!padding && place_of(args, stretch) == place) word.starts |= 1u << bit;
  }
  static_cast<RunBits*>(args.run_index)[thread] = word;
#else
  if (thread >= tokens) return;
  int64 stretch = stretch_at(args, thread);
  int slot = args.stretches[stretch].slot;
  int index = slot < 0 ? -1 : int(thread - place_of(args, stretch));
#if MAP == POSITIONS
  static_cast<int*>(args.run_index)[thread] = index;
  args.slot[thread] = slot;
#else
  // Saturated as 16-bit positions are; 65535 is padding.
  static_cast<uint16*>(args.run_index)[thread] = uint16(index < 0 ? 65535 : index < 65534 ? index : 65534);
#endif
#endif
}
#endif
