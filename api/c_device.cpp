// The C interface: devices and sequence maps.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include "api/c_struct.hpp"
#include "api/handles.hpp"
#include "api/self_check.hpp"
#include "runtime/cuda_device.hpp"

using packjit::api::guarded;
using packjit::api::read_struct;
using packjit::api::require;
using packjit::api::write_struct;

namespace {

std::unique_ptr<packjit::api::Backend> on_gpu(std::optional<int> ordinal) {
  return packjit::api::cuda_backend(packjit::Driver::get(), ordinal, packjit::compile_for_gpu,
                                    packjit::api::self_check());
}

std::unique_ptr<packjit::api::Backend> backend_for(const packjit_device_options& options) {
  const bool numbered = options.kind == PACKJIT_GPU || options.kind == PACKJIT_AUTO;
  if (options.ordinal < 0 || (options.ordinal > 0 && !numbered)) {
    throw std::invalid_argument(fmt::format(
        "packjit_device_options: ordinal is {}; expected the number of a GPU, 0 or more, with PACKJIT_GPU or "
        "PACKJIT_AUTO, and 0 with the others",
        options.ordinal));
  }
  switch (options.kind) {
    case PACKJIT_HOST:
      return packjit::api::host_backend();
    case PACKJIT_GPU:
      return on_gpu(options.ordinal);
    case PACKJIT_CURRENT:
      return on_gpu(std::nullopt);
    case PACKJIT_AUTO:
      if (packjit::survey_driver().gpus.empty()) return packjit::api::host_backend();
      return on_gpu(options.ordinal);
    default:
      throw std::invalid_argument(fmt::format(
          "packjit_device_options: kind is {}; expected PACKJIT_AUTO (0), PACKJIT_GPU (1), PACKJIT_CURRENT (2) or "
          "PACKJIT_HOST (3)",
          options.kind));
  }
}

template <std::size_t kSize>
void copy_text(char (&to)[kSize], const std::string& from) {
  const std::size_t length = std::min(from.size(), kSize - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace

extern "C" {

packjit_status packjit_device_open(const packjit_device_options* options, packjit_device** device) {
  return guarded([&] {
    require(device, "packjit_device_open", "device");
    *device = nullptr;
    *device = new packjit_device(backend_for(read_struct(options, "packjit_device_options")));
  });
}

void packjit_device_release(packjit_device* device) { delete device; }

packjit_status packjit_device_get_info(packjit_device* device, packjit_device_info* info) {
  return guarded([&] {
    require(device, "packjit_device_get_info", "device");
    const auto lane = device->backend->enter(nullptr);
    const packjit::DeviceInfo& found = lane->info();
    packjit_device_info result{};
    result.is_host = found.kind == "host" ? 1 : 0;
    result.multiprocessors = found.multiprocessors;
    result.memory_bytes = found.memory_bytes;
    copy_text(result.arch, found.arch);
    copy_text(result.name, found.name);
    write_struct(info, result, "packjit_device_info");
  });
}

packjit_status packjit_map_from_host(packjit_device* device, void* stream, const packjit_map_options* options,
                                     const packjit_tensor* boundaries, packjit_map** map) {
  return guarded([&] {
    require(device, "packjit_map_from_host", "device");
    require(map, "packjit_map_from_host", "map");
    *map = nullptr;
    *map =
        new packjit_map{*device, packjit::api::Map::from_host(*device->backend, stream,
                                                              read_struct(options, "packjit_map_options"), boundaries)};
  });
}

packjit_status packjit_map_create(packjit_device* device, void* stream, const packjit_map_options* options,
                                  int32_t index_dtype, packjit_map** map) {
  return guarded([&] {
    require(device, "packjit_map_create", "device");
    require(map, "packjit_map_create", "map");
    *map = nullptr;
    *map = new packjit_map{
        *device, packjit::api::Map::for_device(*device->backend, stream, read_struct(options, "packjit_map_options"),
                                               index_dtype)};
  });
}

packjit_status packjit_map_build(packjit_map* map, void* stream, const packjit_tensor* boundaries) {
  return guarded([&] {
    require(map, "packjit_map_build", "map");
    map->map->build(stream, boundaries);
  });
}

packjit_status packjit_map_check(packjit_map* map, void* stream) {
  return guarded([&] {
    require(map, "packjit_map_check", "map");
    map->map->check(stream);
  });
}

packjit_status packjit_map_get_info(const packjit_map* map, packjit_map_info* info) {
  return guarded([&] {
    require(map, "packjit_map_get_info", "map");
    const packjit::MappedSequences& sequences = map->map->sequences();
    write_struct(info,
                 {0, sequences.batch, sequences.seqlen, sequences.n_sequences, map->map->max_sequences(),
                  map->map->max_seqlen()},
                 "packjit_map_info");
  });
}

void packjit_map_release(packjit_map* map) { delete map; }

}  // extern "C"
