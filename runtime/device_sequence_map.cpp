#include "runtime/device_sequence_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

#include "generator/sequence_map.hpp"

namespace packjit {
namespace {

using Form = Boundaries::Form;

Spec map_spec(Form form, ElementType type, MapStorage storage) {
  Spec spec(Operator::sequence_map);
  spec.values.set_text("form", name_of(form));
  spec.values.set("map", static_cast<int>(storage));
  if (form == Form::rows) return spec;
  if (!is_integer(type)) {
    throw std::invalid_argument(
        fmt::format("{} has dtype {}; expected int16, uint16, int32 or int64", name_of(form), name_of(type)));
  }
  spec.values.set_text("index", name_of(type));
  return spec;
}

/// run_index and slot of every token, from the items.
void fill_tokens(SequenceMap& map) {
  for (const SequenceItem& item : map.items) {
    const auto first = static_cast<std::size_t>(item.row * map.seqlen + item.start);
    for (int i = 0; i < item.length && item.slot >= 0; ++i) {
      map.run_index[first + static_cast<std::size_t>(i)] = i;
      map.slot[first + static_cast<std::size_t>(i)] = item.slot;
    }
  }
}

const MapLimits& checked(const MapLimits& limits) {
  check_limits(limits);
  return limits;
}

}  // namespace

DeviceSequenceMap::DeviceSequenceMap(Device& device, Form form, ElementType type, const MapLimits& limits,
                                     MapStorage storage)
    : DeviceSequenceMap(device, form, type, limits, storage,
                        builtin_config(map_spec(form, type, storage), device.info().arch)) {}

DeviceSequenceMap::DeviceSequenceMap(Device& device, Form form, ElementType type, const MapLimits& limits,
                                     MapStorage storage, const Config& config)
    : device_(device), form_(form), type_(type), limits_(checked(limits)), sequences_(device, limits, storage) {
  const Spec spec = map_spec(form, type, storage);
  if (form == Form::rows && limits.batch > limits.max_sequences) {
    throw std::invalid_argument(violation_text({MapRule::too_many_sequences, 0, limits.batch, 0}, form, limits, 0));
  }
  Problem problem;
  problem.sizes.batch = limits.batch;
  problem.sizes.seqlen = limits.seqlen;
  problem.sizes.n_sequences = limits.max_sequences;
  plan_ = plan(spec, config, problem);
  workspace_ = Buffer(device, static_cast<std::size_t>(plan_.workspace_bytes));
  module_ = device.load(spec, config);
  device.resolve(*module_, plan_.launches);

  const MapWorkspace space = map_workspace(spec, config, problem);
  auto* memory = static_cast<std::byte*>(workspace_.data());
  MapArguments& a = arguments_;
  a.batch = limits.batch;
  a.seqlen = limits.seqlen;
  a.offset_sequences = form == Form::rows ? limits.batch : 0;
  a.max_sequences = limits.max_sequences;
  a.max_seqlen = limits.max_seqlen;
  a.most_stretches = sequences_.items;
  a.tile_count = space.tile_count;
  a.run_index = sequences_.run_index.data();
  a.slot = static_cast<int*>(sequences_.slot.data());
  a.items = static_cast<SequenceItem*>(sequences_.item_list.data());
  a.segments = static_cast<SequenceItem*>(sequences_.segment_list.data());
  a.stretches = static_cast<SequenceItem*>(sequences_.stretches.data());
  a.summary = static_cast<MapSummary*>(sequences_.summary.data());
  a.other_items = reinterpret_cast<SequenceItem*>(memory + space.other_items);
  a.tiles = reinterpret_cast<MapTile*>(memory + space.tiles);
}

void DeviceSequenceMap::build(const TensorView& boundaries) {
  if (form_ != Form::rows) {
    if (boundaries.type != type_) {
      throw std::invalid_argument(fmt::format("{} has dtype {}; the map was made for {}", name_of(form_),
                                              name_of(boundaries.type), name_of(type_)));
    }
    check_boundary_tensor(form_, boundaries.type, boundaries.size, limits_.batch, limits_.seqlen);
    std::int64_t dense = 1;
    for (std::size_t i = boundaries.size.size(); i-- > 0;) {
      if (boundaries.size[i] > 1 && boundaries.stride[i] != dense) {
        throw std::invalid_argument(
            fmt::format("{} has stride {} in dimension {}, expected {}: boundaries are dense; "
                        "copy them first",
                        name_of(form_), boundaries.stride[i], i, dense));
      }
      dense *= boundaries.size[i];
    }
  }
  if (form_ == Form::cu_seqlens) {
    const std::int64_t offsets = boundaries.size.front();
    check_offset_count(offsets, limits_.batch * limits_.seqlen);
    if (offsets - 1 > limits_.max_sequences) {
      throw std::invalid_argument(violation_text({MapRule::too_many_sequences, 0, offsets - 1, 0}, form_, limits_, 0));
    }
    arguments_.offset_sequences = offsets - 1;
  }
  arguments_.values = boundaries.data;
  for (const KernelLaunch& launch : plan_.launches) {
    device_.launch(*module_, launch, std::as_bytes(std::span(&arguments_, 1)));
  }
}

void DeviceSequenceMap::check() {
  MapSummary summary{};
  auto* in_device = static_cast<MapSummary*>(sequences_.summary.data());
  device_.read(&summary, in_device, sizeof(summary));
  if (summary.violation.rule == MapRule::none) return;
  const MapViolation none{};
  device_.write(&in_device->violation, &none, sizeof(none));
  throw std::invalid_argument(violation_text(summary.violation, form_, limits_, saturation_of(form_, type_)));
}

SequenceMap DeviceSequenceMap::read() {
  MapSummary summary{};
  device_.read(&summary, sequences_.summary.data(), sizeof(summary));
  SequenceMap map;
  map.batch = limits_.batch;
  map.seqlen = limits_.seqlen;
  map.n_sequences = limits_.max_sequences;
  map.run_index.assign(static_cast<std::size_t>(limits_.batch * limits_.seqlen), -1);
  map.slot = map.run_index;
  map.items.resize(static_cast<std::size_t>(summary.items));
  map.segments.resize(static_cast<std::size_t>(summary.segments));
  const auto read_all = [&](auto& values, const Buffer& from) {
    if (!values.empty()) device_.read(values.data(), from.data(), values.size() * sizeof(values.front()));
  };
  read_all(map.items, sequences_.item_list);
  read_all(map.segments, sequences_.segment_list);
  if (sequences_.storage == MapStorage::positions) {
    read_all(map.run_index, sequences_.run_index);
    read_all(map.slot, sequences_.slot);
  } else {
    fill_tokens(map);
  }
  for (const SequenceItem& item : map.items) {
    if (item.slot >= 0) map.max_seqlen = std::max<std::int64_t>(map.max_seqlen, item.length);
  }
  return map;
}

}  // namespace packjit
