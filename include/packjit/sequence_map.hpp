#pragma once
// Where sequences begin and end. A part of packjit/packjit.hpp.

#include "packjit/device.hpp"

namespace packjit {
inline namespace v1 {

/// The forms in which boundaries come; see packjit.h.
enum class Form {
  position_indices = PACKJIT_POSITION_INDICES,
  seq_idx = PACKJIT_SEQ_IDX,
  cu_seqlens = PACKJIT_CU_SEQLENS,
  rows = PACKJIT_ROWS
};
/// How a map tells a token's place. The scan's backward takes positions only.
enum class MapStorage {
  positions = PACKJIT_POSITIONS,
  positions16 = PACKJIT_POSITIONS16,
  bits = PACKJIT_BITS,
  offsets = PACKJIT_OFFSETS
};

/// The size of a batch. The limits are needed for maps that the device builds. For others 0 means none; with limits
/// there are max_sequences slots, and kernels are chosen by the limits, the same for every batch.
struct MapSize {
  std::int64_t batch = 0, seqlen = 0;
  std::int64_t max_sequences = 0, max_seqlen = 0;
};

/// The boundaries of one batch in device memory, shared by all layers. Many threads may run operators with it at once
/// while none changes it. Movable, not copyable. What uses it must have ended when it is destroyed.
class SequenceMap {
 public:
  /// From boundaries in host memory, absent for rows. They are read before the call returns; the copy to the device is
  /// ordered on `stream`. bad_argument names the token that breaks a rule.
  [[nodiscard]] static Result<SequenceMap> from_host(const Device& device, Form form, const Tensor& boundaries,
                                                     const MapSize& size, MapStorage storage = MapStorage::positions,
                                                     Stream stream = nullptr) {
    const packjit_map_options options = options_of(form, size, storage);
    packjit_map* handle = nullptr;
    const Status status(packjit_map_from_host(device.handle(), stream, &options, boundaries.get(), &handle));
    if (!status) return status;
    return SequenceMap(handle);
  }

  /// Room for a map that the device builds from boundaries of this dtype. Compiles, loads and takes memory.
  [[nodiscard]] static Result<SequenceMap> on_device(const Device& device, Form form, Dtype index, const MapSize& size,
                                                     MapStorage storage = MapStorage::positions,
                                                     Stream stream = nullptr) {
    const packjit_map_options options = options_of(form, size, storage);
    packjit_map* handle = nullptr;
    const Status status(
        packjit_map_create(device.handle(), stream, &options, static_cast<std::int32_t>(index), &handle));
    if (!status) return status;
    return SequenceMap(handle);
  }

  /// Launches the building from dense boundaries in device memory, absent for rows. Waits for nothing; can be captured.
  Status build(const Tensor& boundaries, Stream stream = nullptr) {
    return Status(packjit_map_build(handle_.get(), stream, boundaries.get()));
  }
  /// Waits for `stream`. bad_argument where boundaries broke a rule since the last check; until then every row counts
  /// as padding.
  Status check(Stream stream = nullptr) { return Status(packjit_map_check(handle_.get(), stream)); }

  /// Slots: how many states there are.
  [[nodiscard]] std::int64_t n_sequences() const {
    packjit_map_info info{};
    info.struct_size = sizeof(info);
    return packjit_map_get_info(handle_.get(), &info) == PACKJIT_OK ? info.n_sequences : 0;
  }
  [[nodiscard]] const packjit_map* handle() const { return handle_.get(); }

 private:
  explicit SequenceMap(packjit_map* handle) : handle_(handle) {}
  static packjit_map_options options_of(Form form, const MapSize& size, MapStorage storage) {
    return {sizeof(packjit_map_options),
            static_cast<std::int32_t>(form),
            static_cast<std::int32_t>(storage),
            size.batch,
            size.seqlen,
            size.max_sequences,
            size.max_seqlen};
  }
  detail::Owned<packjit_map, packjit_map_release> handle_;
};

}  // namespace v1
}  // namespace packjit
