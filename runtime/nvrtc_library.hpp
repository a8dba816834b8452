#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include "runtime/dynamic_library.hpp"
#include "runtime/nvrtc.hpp"

namespace packjit {

/// The functions used of NVRTC and what was read from it. Internal: needs NVIDIA's header to build.
struct Nvrtc::Library {
  DynamicLibrary file;
  DynamicLibrary builtins;  ///< data of the compiler; not open where the system's search finds it
  std::string origin;
  NvrtcVersion version;
  std::string build;
  std::vector<std::string> archs;

  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcVersion) get_version = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) arch_count = nullptr;
  decltype(&nvrtcGetSupportedArchs) get_archs = nullptr;
  decltype(&nvrtcCreateProgram) create_program = nullptr;
  decltype(&nvrtcDestroyProgram) destroy_program = nullptr;
  decltype(&nvrtcCompileProgram) compile_program = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) get_log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) get_cubin = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) get_ptx = nullptr;

  /// Fills the table; the name of the first function that the library lacks, or null when complete.
  const char* bind();
};

}  // namespace packjit
