# Language level, warnings and sanitizers, shared by every target through packjit_options.
option(PACKJIT_TESTS "Build the tests" ON)
option(PACKJIT_WERROR "Treat warnings as errors" OFF)
set(PACKJIT_SANITIZE "" CACHE STRING "Sanitizers for all code, generated host code included: address,undefined or thread")
set_property(CACHE PACKJIT_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# libpackjit exports its C interface and nothing else.
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(packjit_options INTERFACE)
# For targets outside this tree that link packjit_runtime.
target_compile_features(packjit_options INTERFACE cxx_std_20)
target_include_directories(packjit_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(packjit_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-unknown-pragmas
  $<$<BOOL:${PACKJIT_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarm of GCC 12 on `"text" + std::string()`, GCC bug 105651.
  target_compile_options(packjit_options INTERFACE -Wno-restrict)
endif()
if(PACKJIT_SANITIZE)
  # A report must fail the test that caused it, so nothing is recoverable.
  target_compile_options(packjit_options INTERFACE -fsanitize=${PACKJIT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(packjit_options INTERFACE -fsanitize=${PACKJIT_SANITIZE})
  target_compile_definitions(packjit_options INTERFACE PACKJIT_SANITIZE="${PACKJIT_SANITIZE}")
endif()
