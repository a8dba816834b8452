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

# Of fmt the headers alone: distributions have it as a shared library only, and what is installed depends on none.
target_link_libraries(packjit_options INTERFACE fmt::fmt-header-only)
