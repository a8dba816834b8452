#pragma once

namespace packjit::host {

struct HostIndex {
  unsigned x, y, z;
};

/// What the generated host code sees of the thread that it plays. The same struct stands in
/// templates/device/primitives_host.cuh; packjit_host_layout() of the loaded code returns its size, which the loader
/// compares.
struct HostThread {
  HostIndex thread, block, block_size, grid_size;
  const void* argument;
  char* shared;
  void (*sync_block)(HostThread*);
  unsigned (*exchange)(HostThread*, unsigned value, int lane);
};

}  // namespace packjit::host
