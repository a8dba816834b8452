#include "generator/sequence_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "generator/shared_fields.hpp"
#include "templates/device/sequence_map_arguments.cuh"

namespace packjit {
namespace {

constexpr std::string_view kFormLabels[] = {"position_indices", "seq_idx", "cu_seqlens", "rows"};
constexpr std::string_view kIndexLabels[] = {"int16", "uint16", "int32", "int64"};

constexpr Field kSpecFields[] = {
    {"form", 0, 3, 0, kFormLabels, "what says where sequences begin and end"},
    {"index", 0, 3, 2, kIndexLabels, "element type of the boundaries"},
    kMapField,
};
constexpr Field kConfigFields[] = {
    {"block", 32, 1024, 256, {}, "threads of a block, and tokens of a tile"},
    {"digit_bits", 1, 8, 4, {}, "bits of a length that one pass of the sort looks at"},
};

// A block's sums, then its counters of digits.
std::int64_t shared_bytes(const Config& config, bool sorts) {
  const std::int64_t block = config.values["block"];
  const std::int64_t sums = block * static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t counts = (block << config.values["digit_bits"]) * static_cast<std::int64_t>(sizeof(int));
  return sums + (sorts ? counts : 0);
}

bool has_value_a_token(const Spec& spec) { return spec.values["form"] <= 1; }

}  // namespace

std::span<const Field> map_spec_fields() { return kSpecFields; }
std::span<const Field> map_config_fields() { return kConfigFields; }

void check_map_pair(const Config& config) {
  require_power_of_two(config, "block");
  constexpr std::int64_t kMostShared = std::int64_t{48} * 1024;  // what every architecture gives without asking
  if (shared_bytes(config, true) > kMostShared) {
    throw std::invalid_argument(
        fmt::format("block = {} with digit_bits = {} needs {} bytes of shared memory; at most {} are there",
                    config.values["block"], config.values["digit_bits"], shared_bytes(config, true), kMostShared));
  }
}

std::int64_t most_items(std::int64_t batch, std::int64_t max_sequences) { return 2 * max_sequences + batch; }

std::int64_t run_index_bytes(MapStorage storage, std::int64_t tokens) {
  switch (storage) {
    case MapStorage::positions:
      return tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
    case MapStorage::positions16:
      return tokens * static_cast<std::int64_t>(sizeof(std::uint16_t));
    case MapStorage::bits:
      return ceil_div(tokens, kBitsOfWord) * static_cast<std::int64_t>(sizeof(RunBits));
    case MapStorage::offsets:
      return 0;
  }
  throw std::invalid_argument(fmt::format("no storage of a map has the value {}", static_cast<int>(storage)));
}

MapWorkspace map_workspace(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const std::int64_t stretches = most_items(sizes.batch, sizes.n_sequences);
  const std::int64_t places = has_value_a_token(spec) ? sizes.batch * sizes.seqlen : sizes.n_sequences;
  MapWorkspace space;
  space.tile_count = std::max<std::int64_t>(1, ceil_div(places, config.values["block"]));
  const auto add = [&](std::int64_t count, std::size_t element) {
    const std::int64_t begin = space.bytes;
    space.bytes += ceil_div(count * static_cast<std::int64_t>(element), 16) * 16;
    return begin;
  };
  space.other_items = add(stretches, sizeof(SequenceItem));
  space.tiles = add(space.tile_count, sizeof(MapTile));
  return space;
}

Plan map_plan(const Spec& spec, const Config& config, const Problem& problem) {
  const Sizes& sizes = problem.sizes;
  const MapWorkspace space = map_workspace(spec, config, problem);
  const auto block = static_cast<std::uint32_t>(config.values["block"]);
  const auto sums = static_cast<std::uint32_t>(shared_bytes(config, false));
  const auto tiles = static_cast<std::uint32_t>(space.tile_count);
  const auto storage = static_cast<MapStorage>(spec.values["map"]);
  const std::int64_t tokens = sizes.batch * sizes.seqlen;
  const std::int64_t words = storage == MapStorage::bits ? ceil_div(tokens, kBitsOfWord) : tokens;
  const std::string name(name_of(spec.op));
  Plan result;
  if (has_value_a_token(spec)) {
    result.launches = {{name + "_count", tiles, 1, block, sums}, {name + "_scan", 1, 1, block, sums}};
  }
  result.launches.push_back({name + "_stretches", tiles, 1, block, sums});
  result.launches.push_back({name + "_order", 1, 1, block, static_cast<std::uint32_t>(shared_bytes(config, true))});
  if (storage != MapStorage::offsets) {
    result.launches.push_back({name + "_tokens", static_cast<std::uint32_t>(ceil_div(words, block)), 1, block, 0});
  }
  result.workspace_bytes = space.bytes;
  return result;
}

}  // namespace packjit
