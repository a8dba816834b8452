// The fake driver under the name that programs open: what they do with a GPU, as far as the host sees it.
#include "tests/api/fake_driver.hpp"

namespace {

const packjit::Driver& fake() {
  static auto* const kFake = new packjit::testing::FakeDriver;  // never destroyed: the program may call while it ends
  return kFake->driver();
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult
#define FORWARD(name, member, parameters, arguments) \
  FAKE name parameters { return fake().member arguments; }
#define REFUSE(name, parameters) \
  FAKE name parameters { return CUDA_ERROR_NOT_SUPPORTED; }

FAKE cuInit(unsigned) { return CUDA_SUCCESS; }
FAKE cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
FORWARD(cuGetErrorName, error_name, (CUresult a, const char** b), (a, b))
FORWARD(cuGetErrorString, error_string, (CUresult a, const char** b), (a, b))
FORWARD(cuDeviceGetCount, device_count, (int* a), (a))
FORWARD(cuDeviceGet, device_get, (CUdevice * a, int b), (a, b))
FORWARD(cuDeviceGetName, device_name, (char* a, int b, CUdevice c), (a, b, c))
FORWARD(cuDeviceGetAttribute, device_attribute, (int* a, CUdevice_attribute b, CUdevice c), (a, b, c))
FORWARD(cuDeviceTotalMem, device_memory, (size_t * a, CUdevice b), (a, b))
FORWARD(cuDevicePrimaryCtxRetain, context_retain, (CUcontext * a, CUdevice b), (a, b))
FORWARD(cuDevicePrimaryCtxRelease, context_release, (CUdevice a), (a))
FORWARD(cuCtxPushCurrent, context_push, (CUcontext a), (a))
FORWARD(cuCtxPopCurrent, context_pop, (CUcontext * a), (a))
FORWARD(cuCtxGetCurrent, context_current, (CUcontext * a), (a))
FORWARD(cuCtxGetDevice, context_device, (CUdevice * a), (a))
FORWARD(cuCtxGetId, context_id, (CUcontext a, unsigned long long* b), (a, b))
FORWARD(cuStreamCreate, stream_create, (CUstream * a, unsigned b), (a, b))
FORWARD(cuStreamDestroy, stream_destroy, (CUstream a), (a))
FORWARD(cuStreamSynchronize, stream_synchronize, (CUstream a), (a))
FORWARD(cuStreamGetId, stream_id, (CUstream a, unsigned long long* b), (a, b))
FORWARD(cuStreamIsCapturing, capture_status, (CUstream a, CUstreamCaptureStatus* b), (a, b))
FORWARD(cuThreadExchangeStreamCaptureMode, capture_mode, (CUstreamCaptureMode * a), (a))
FORWARD(cuMemAlloc, memory_allocate, (CUdeviceptr * a, size_t b), (a, b))
FORWARD(cuMemFree, memory_free, (CUdeviceptr a), (a))
FORWARD(cuMemcpyHtoDAsync, copy_to_device, (CUdeviceptr a, const void* b, size_t c, CUstream d), (a, b, c, d))
FORWARD(cuMemcpyDtoHAsync, copy_to_host, (void* a, CUdeviceptr b, size_t c, CUstream d), (a, b, c, d))
FORWARD(cuMemsetD8Async, memory_set, (CUdeviceptr a, unsigned char b, size_t c, CUstream d), (a, b, c, d))
FORWARD(cuModuleLoadDataEx, module_load, (CUmodule * a, const void* b, unsigned c, CUjit_option* d, void** e),
        (a, b, c, d, e))
FORWARD(cuModuleUnload, module_unload, (CUmodule a), (a))
FORWARD(cuModuleGetFunction, module_function, (CUfunction * a, CUmodule b, const char* c), (a, b, c))
FORWARD(cuFuncGetAttribute, function_attribute, (int* a, CUfunction_attribute b, CUfunction c), (a, b, c))
FORWARD(cuFuncSetAttribute, function_set_attribute, (CUfunction a, CUfunction_attribute b, int c), (a, b, c))
FORWARD(cuLaunchKernelEx, launch_kernel, (const CUlaunchConfig* a, CUfunction b, void** c, void** d), (a, b, c, d))
REFUSE(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))
REFUSE(cuStreamBeginCapture, (CUstream, CUstreamCaptureMode))
REFUSE(cuStreamEndCapture, (CUstream, CUgraph*))
REFUSE(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))
REFUSE(cuGraphDestroy, (CUgraph))
REFUSE(cuGraphLaunch, (CUgraphExec, CUstream))
REFUSE(cuGraphExecDestroy, (CUgraphExec))
REFUSE(cuEventCreate, (CUevent*, unsigned))
REFUSE(cuEventDestroy, (CUevent))
REFUSE(cuEventRecord, (CUevent, CUstream))
REFUSE(cuEventSynchronize, (CUevent))
#undef cuEventElapsedTime  // the driver of CUDA 12 has it without the header's suffix
REFUSE(cuEventElapsedTime, (float*, CUevent, CUevent))
REFUSE(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int*, CUfunction, int, size_t))
// NVRTC asks for it and goes on without.
REFUSE(cuGetExportTable, (const void**, const CUuuid*))
