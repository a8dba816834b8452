#pragma once

#include "generator/operators.hpp"

namespace packjit {

// sequence_map: fields, constraints and launches. The kernels are templates/sequence_map.cu.
[[nodiscard]] std::span<const Field> map_spec_fields();
[[nodiscard]] std::span<const Field> map_config_fields();
void check_map_pair(const Config& config);
/// Of the problem: batch, seqlen and n_sequences, which is the most that the caller has room for.
[[nodiscard]] Plan map_plan(const Spec& spec, const Config& config, const Problem& problem);

/// The most items that a map of so many sequences has: each may stand between two stretches of padding, in rows that
/// begin with one, and every slot is an item, used or not.
[[nodiscard]] std::int64_t most_items(std::int64_t batch, std::int64_t max_sequences);

/// How a map tells a token's place in its sequence, the values of the Spec field `map`: int32; 16 bits, which is more
/// than any filter reaches back; two bits a token (a sequence begins, padding); or not at all, by bisecting the
/// stretches.
enum class MapStorage { positions, positions16, bits, offsets };
inline constexpr std::int64_t kBitsOfWord = 32;
[[nodiscard]] std::int64_t run_index_bytes(MapStorage storage, std::int64_t tokens);

/// Where the parts of the scratch memory begin, in bytes.
struct MapWorkspace {
  std::int64_t other_items = 0, tiles = 0;
  std::int64_t tile_count = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] MapWorkspace map_workspace(const Spec& spec, const Config& config, const Problem& problem);

}  // namespace packjit
