# Libraries come from the system's packages; docs/building.md says what to do on other hosts.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
# The static library where there is one, so that the program runs where Boost is not installed.
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost QUIET COMPONENTS context)
if(NOT Boost_CONTEXT_FOUND)
  set(Boost_USE_STATIC_LIBS OFF)
  find_package(Boost REQUIRED COMPONENTS context)
endif()
find_package(Threads REQUIRED)
# Its header holds the whole library; nothing is linked.
find_path(PACKJIT_XXHASH_INCLUDE_DIR xxhash.h REQUIRED DOC "folder of xxhash.h (Debian: libxxhash-dev)")
mark_as_advanced(PACKJIT_XXHASH_INCLUDE_DIR)
if(PACKJIT_TESTS)
  find_package(GTest REQUIRED)
endif()

# Of fmt the headers alone: distributions have it as a shared library only, and what is installed depends on none. Every
# file that formats would spend 4 s on compiling all of fmt, so it is compiled here, once, where the version is one whose
# parts fmt.cpp knows.
set(packjit_fmt_source "")
if(fmt_VERSION VERSION_LESS 10)
  set(packjit_fmt_source "${CMAKE_CURRENT_LIST_DIR}/fmt.cpp")
  add_library(packjit_fmt STATIC "${packjit_fmt_source}")
  target_include_directories(packjit_fmt SYSTEM PUBLIC
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_features(packjit_fmt PUBLIC cxx_std_20)
  # The same sanitizers.
  target_compile_options(packjit_fmt PRIVATE $<TARGET_PROPERTY:packjit_options,INTERFACE_COMPILE_OPTIONS>)
  target_link_libraries(packjit_options INTERFACE packjit_fmt)
else()
  target_link_libraries(packjit_options INTERFACE fmt::fmt-header-only)
endif()
