# CUDA's headers to build with, and the build tree's own NVRTC. Nothing here links CUDA: the program opens NVRTC and
# the driver when it runs.
#
# Defines the target packjit_cuda_headers (cuda.h and nvrtc.h), and PACKJIT_NVRTC_FALLBACK_DIR: the folder of
# libnvrtc.so.N inside PACKJIT_NVRTC_DIR, or empty where scripts/bootstrap.sh had no need to install it.
set(PACKJIT_NVRTC_DIR "${PROJECT_SOURCE_DIR}/build/nvrtc" CACHE PATH
  "Where scripts/bootstrap.sh installs the wheels of NVRTC and of CUDA's headers")

file(GLOB packjit_wheel_includes LIST_DIRECTORIES true "${PACKJIT_NVRTC_DIR}/nvidia/*/include")
file(GLOB packjit_toolkit_includes LIST_DIRECTORIES true "/usr/local/cuda/include" "/usr/local/cuda-*/include")
foreach(header cuda nvrtc)
  string(TOUPPER ${header} variable)
  set(variable PACKJIT_${variable}_INCLUDE_DIR)
  if(DEFINED ${variable} AND NOT EXISTS "${${variable}}/${header}.h")
    unset(${variable} CACHE)  # the toolkit or the wheels that an earlier configuration found are gone
  endif()
  find_path(${variable} ${header}.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES include
    PATHS ${packjit_toolkit_includes} ${packjit_wheel_includes}
    DOC "Folder of ${header}.h")
  if(NOT ${variable})
    message(FATAL_ERROR "${header}.h was not found in CUDA_HOME, CUDA_PATH, /usr/local/cuda* or ${PACKJIT_NVRTC_DIR}. "
      "Run scripts/bootstrap.sh, which installs it into the build tree, or set ${variable}.")
  endif()
endforeach()

add_library(packjit_cuda_headers INTERFACE)
target_include_directories(packjit_cuda_headers SYSTEM INTERFACE
  "${PACKJIT_CUDA_INCLUDE_DIR}" "${PACKJIT_NVRTC_INCLUDE_DIR}")

file(GLOB packjit_wheel_libraries "${PACKJIT_NVRTC_DIR}/nvidia/*/lib/libnvrtc.so.*")
set(PACKJIT_NVRTC_FALLBACK_DIR "")
if(packjit_wheel_libraries)
  list(GET packjit_wheel_libraries 0 packjit_wheel_library)
  get_filename_component(PACKJIT_NVRTC_FALLBACK_DIR "${packjit_wheel_library}" DIRECTORY)
endif()
message(STATUS "CUDA headers: ${PACKJIT_CUDA_INCLUDE_DIR}")
if(PACKJIT_NVRTC_FALLBACK_DIR)
  message(STATUS "NVRTC of the build tree: ${PACKJIT_NVRTC_FALLBACK_DIR}")
endif()
