#include "api/map.hpp"

#include <stdexcept>

#include <fmt/format.h>

#include "runtime/stream_device.hpp"

namespace packjit::api {
namespace {

Boundaries::Form form_of(const packjit_map_options& options) {
  if (options.form >= PACKJIT_POSITION_INDICES && options.form <= PACKJIT_ROWS) {
    return static_cast<Boundaries::Form>(options.form - 1);
  }
  throw std::invalid_argument(fmt::format(
      "packjit_map_options: form is {}; expected PACKJIT_POSITION_INDICES (1) to PACKJIT_ROWS (4). No form is never "
      "taken as one long sequence",
      options.form));
}

MapStorage storage_of(const packjit_map_options& options) {
  if (options.storage >= PACKJIT_POSITIONS && options.storage <= PACKJIT_OFFSETS) {
    return static_cast<MapStorage>(options.storage);
  }
  throw std::invalid_argument(fmt::format(
      "packjit_map_options: storage is {}; expected PACKJIT_POSITIONS (0) to PACKJIT_OFFSETS (3)", options.storage));
}

/// Rows come without a tensor, every other form with one.
void check_given(Boundaries::Form form, const packjit_tensor* boundaries) {
  if ((form == Boundaries::Form::rows) == (boundaries == nullptr)) return;
  throw std::invalid_argument(fmt::format(
      "boundaries of form {}: {}", name_of(form),
      boundaries == nullptr ? "a tensor is expected, NULL was given" : "a tensor was given, NULL is expected"));
}

}  // namespace

Map::Map(Backend& backend, void* stream)
    : backend_(backend), context_(backend.enter(stream)->context()), keeper_(backend.keeper(stream)) {}

std::unique_ptr<Map> Map::from_host(Backend& backend, void* stream, const packjit_map_options& options,
                                    const packjit_tensor* boundaries) {
  const Boundaries::Form form = form_of(options);
  const MapStorage storage = storage_of(options);
  check_given(form, boundaries);
  const bool limited = options.max_sequences != 0 || options.max_seqlen != 0;
  if (limited && (options.max_sequences == 0 || options.max_seqlen == 0)) {
    throw std::invalid_argument(
        fmt::format("packjit_map_options: max_sequences is {} and max_seqlen is {}; set both, or neither where each "
                    "batch may have limits of its own",
                    options.max_sequences, options.max_seqlen));
  }
  MapLimits limits{options.batch, options.seqlen, options.max_sequences, options.max_seqlen};
  if (limited) check_limits(limits);
  Boundaries given;
  if (form != Boundaries::Form::rows) {
    given = boundaries_from_tensor(form, host_copy(boundaries, name_of(form)), options.batch, options.seqlen);
  }
  SequenceMap map = build_sequence_map(given, options.batch, options.seqlen);
  if (limited) {
    map = with_unused_slots(std::move(map), form, limits);
  } else {
    limits.max_sequences = map.n_sequences;
    limits.max_seqlen = map.max_seqlen;
  }
  std::unique_ptr<Map> made(new Map(backend, stream));
  made->limits_ = limits;
  made->form_ = form;
  made->copied_.emplace(*made->keeper_, map, storage);
  // As on the device: launches are sized by the limits, so that they are the same for every batch.
  if (limited) static_cast<MapShape&>(*made->copied_) = shape_of(limits, storage);
  return made;
}

std::unique_ptr<Map> Map::for_device(Backend& backend, void* stream, const packjit_map_options& options,
                                     std::int32_t index_dtype) {
  const Boundaries::Form form = form_of(options);
  const MapStorage storage = storage_of(options);
  const bool rows = form == Boundaries::Form::rows;
  const ElementType type = rows ? ElementType::int32 : element_type(index_dtype, "packjit_map_create: index_dtype");
  const MapLimits limits{options.batch, options.seqlen, options.max_sequences, options.max_seqlen};
  check_limits(limits);
  std::unique_ptr<Map> made(new Map(backend, stream));
  made->limits_ = limits;
  made->form_ = form;
  made->built_.emplace(*made->keeper_, form, type, limits, storage);
  return made;
}

Map::~Map() {
  auto* borrowed = dynamic_cast<StreamDevice*>(keeper_.get());
  if (borrowed != nullptr && in_graphs_.load(std::memory_order_relaxed)) borrowed->keep_memory();
}

void Map::use(void* stream) {
  auto* borrowed = dynamic_cast<StreamDevice*>(keeper_.get());
  if (borrowed == nullptr) return;
  borrowed->use(stream);
  if (borrowed->is_captured()) keep_for_graphs();
}

void Map::build(void* stream, const packjit_tensor* boundaries) {
  if (!built_) {
    throw std::invalid_argument(
        "packjit_map_build: this map was made from boundaries on the host; make one with packjit_map_create");
  }
  check_given(form_, boundaries);
  use(stream);
  built_->build(boundaries == nullptr ? TensorView{} : view_of(*boundaries, name_of(form_)));
  keeper_->check_guards();
  was_built_ = true;
}

void Map::refuse_unbuilt() const {
  if (!built_ || was_built_) return;
  throw std::invalid_argument("the map has no boundaries yet: packjit_map_build gives it those of a batch");
}

void Map::check(void* stream) {
  if (!built_) return;  // boundaries from the host were checked as they were read
  refuse_unbuilt();
  use(stream);
  built_->check();
}

}  // namespace packjit::api
