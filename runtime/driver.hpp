#pragma once

#include <cuda.h>

#include <string>

#include "runtime/dynamic_library.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

// Member, declaration in cuda.h, exported symbol. The symbol's version is pinned to one that drivers of CUDA 12 have.
#define PACKJIT_DRIVER_FUNCTIONS(X)                                                       \
  X(init, cuInit, "cuInit")                                                               \
  X(driver_version, cuDriverGetVersion, "cuDriverGetVersion")                             \
  X(error_name, cuGetErrorName, "cuGetErrorName")                                         \
  X(error_string, cuGetErrorString, "cuGetErrorString")                                   \
  X(device_count, cuDeviceGetCount, "cuDeviceGetCount")                                   \
  X(device_get, cuDeviceGet, "cuDeviceGet")                                               \
  X(device_name, cuDeviceGetName, "cuDeviceGetName")                                      \
  X(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")                       \
  X(device_memory, cuDeviceTotalMem, "cuDeviceTotalMem_v2")                               \
  X(context_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                 \
  X(context_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")           \
  X(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                \
  X(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                   \
  X(context_current, cuCtxGetCurrent, "cuCtxGetCurrent")                                  \
  X(context_device, cuCtxGetDevice, "cuCtxGetDevice")                                     \
  X(context_id, cuCtxGetId, "cuCtxGetId")                                                 \
  X(stream_create, cuStreamCreate, "cuStreamCreate")                                      \
  X(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")                                \
  X(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize")                       \
  X(stream_id, cuStreamGetId, "cuStreamGetId")                                            \
  X(capture_status, cuStreamIsCapturing, "cuStreamIsCapturing")                           \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode") \
  X(capture_begin, cuStreamBeginCapture, "cuStreamBeginCapture_v2")                       \
  X(capture_end, cuStreamEndCapture, "cuStreamEndCapture")                                \
  X(graph_instantiate, cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")        \
  X(graph_destroy, cuGraphDestroy, "cuGraphDestroy")                                      \
  X(graph_launch, cuGraphLaunch, "cuGraphLaunch")                                         \
  X(graph_release, cuGraphExecDestroy, "cuGraphExecDestroy")                              \
  X(event_create, cuEventCreate, "cuEventCreate")                                         \
  X(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                                   \
  X(event_record, cuEventRecord, "cuEventRecord")                                         \
  X(event_synchronize, cuEventSynchronize, "cuEventSynchronize")                          \
  X(event_elapsed, cuEventElapsedTime, "cuEventElapsedTime")                              \
  X(memory_allocate, cuMemAlloc, "cuMemAlloc_v2")                                         \
  X(memory_free, cuMemFree, "cuMemFree_v2")                                               \
  X(copy_to_device, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")                            \
  X(copy_to_host, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")                              \
  X(copy_on_device, cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2")                            \
  X(memory_set, cuMemsetD8Async, "cuMemsetD8Async")                                       \
  X(module_load, cuModuleLoadDataEx, "cuModuleLoadDataEx")                                \
  X(module_unload, cuModuleUnload, "cuModuleUnload")                                      \
  X(module_function, cuModuleGetFunction, "cuModuleGetFunction")                          \
  X(function_attribute, cuFuncGetAttribute, "cuFuncGetAttribute")                         \
  X(function_set_attribute, cuFuncSetAttribute, "cuFuncSetAttribute")                     \
  X(launch_kernel, cuLaunchKernelEx, "cuLaunchKernelEx")                                  \
  X(max_active_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor")

// What younger drivers have as well; null in others.
#define PACKJIT_OPTIONAL_DRIVER_FUNCTIONS(X) X(function_load, cuFuncLoad, "cuFuncLoad")

/// The CUDA driver, opened at run time. Internal: needs NVIDIA's header to build. Immutable; concurrent use is safe.
struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration cannot have them
#define PACKJIT_MEMBER(member, declaration, symbol) decltype(&declaration) member = nullptr;
  PACKJIT_DRIVER_FUNCTIONS(PACKJIT_MEMBER)
  PACKJIT_OPTIONAL_DRIVER_FUNCTIONS(PACKJIT_MEMBER)
#undef PACKJIT_MEMBER

  DynamicLibrary file;
  NvrtcVersion version;  ///< the CUDA version that the driver supports

  /// Opens and initialises the driver on the first call. Throws EnvironmentError naming what is missing and what to do;
  /// a failure is not remembered. No other function of packjit makes a driver call before this one.
  [[nodiscard]] static const Driver& get();

  /// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
  [[nodiscard]] std::string describe(CUresult result) const;
  /// Throws DriverError "could not ACTION: ERROR" unless the result is success.
  void check(CUresult result, const char* action) const;
};

/// The driver's addresses are integers.
inline void* to_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}
inline CUdeviceptr to_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace packjit
