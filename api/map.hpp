#pragma once

#include <atomic>
#include <memory>

#include "api/backend.hpp"
#include "api/tensors.hpp"
#include "runtime/device_sequence_map.hpp"

namespace packjit::api {

/// A sequence map and the memory it is in. Not thread-safe, but any thread may read a map that is not being changed.
class Map {
 public:
  /// From boundaries in host memory; null for rows.
  static std::unique_ptr<Map> from_host(Backend& backend, void* stream, const packjit_map_options& options,
                                        const packjit_tensor* boundaries);
  /// Room for one that the device builds.
  static std::unique_ptr<Map> for_device(Backend& backend, void* stream, const packjit_map_options& options,
                                         std::int32_t index_dtype);
  void build(void* stream, const packjit_tensor* boundaries);
  void check(void* stream);
  /// A graph was captured that reads the map: its memory then stays until the backend goes. Any thread.
  void keep_for_graphs() const { in_graphs_.store(true, std::memory_order_relaxed); }
  ~Map();
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  /// Throws std::invalid_argument for a map to be built on the device that never was.
  void refuse_unbuilt() const;

  [[nodiscard]] const MappedSequences& sequences() const { return built_ ? built_->sequences() : *copied_; }
  /// What kernels are chosen by.
  [[nodiscard]] std::int64_t max_sequences() const { return limits_.max_sequences; }
  [[nodiscard]] std::int64_t max_seqlen() const { return limits_.max_seqlen; }
  [[nodiscard]] const Backend& backend() const { return backend_; }
  [[nodiscard]] std::uint64_t context() const { return context_; }

 private:
  Map(Backend& backend, void* stream);
  void use(void* stream);

  Backend& backend_;
  std::uint64_t context_;
  std::unique_ptr<Device> keeper_;
  MapLimits limits_;
  Boundaries::Form form_ = Boundaries::Form::rows;
  std::optional<MappedSequences> copied_;
  std::optional<DeviceSequenceMap> built_;
  bool was_built_ = false;
  mutable std::atomic<bool> in_graphs_ = false;
};

}  // namespace packjit::api
