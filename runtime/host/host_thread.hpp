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
  const unsigned* (*gather)(HostThread*, const unsigned (&values)[6]);
  void (*copy_async)(HostThread*, void* to, const void* from, unsigned bytes);
  void (*wait_copies)(HostThread*);
};

}  // namespace packjit::host
