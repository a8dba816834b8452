# packjit_fuzzer(NAME SOURCES...): a libFuzzer program and a short run of it as the test `fuzz.NAME`, label `fuzz`.
#
# The project is built with any C++20 compiler, libFuzzer only comes with clang, so the few sources that a reader of
# outside files needs are compiled once more, by clang++ with the address and undefined sanitizers. One source defines
# LLVMFuzzerTestOneInput. Files in corpus/NAME beside the caller's CMakeLists.txt are read first.
set(PACKJIT_FUZZ_SECONDS 10 CACHE STRING "Length of the run of each fuzz target in the tests, in seconds")
find_program(PACKJIT_CLANGXX NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19
  DOC "clang++ for the fuzz targets")
set(packjit_fuzz_flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)

set(PACKJIT_FUZZING OFF)
if(PACKJIT_TESTS AND NOT PACKJIT_SANITIZE)  # the sanitizer builds would only repeat them
  if(PACKJIT_CLANGXX)
    set(packjit_fuzz_probe "${CMAKE_BINARY_DIR}/CMakeFiles/fuzz_probe")
    file(WRITE "${packjit_fuzz_probe}.cpp"
      "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
    execute_process(COMMAND "${PACKJIT_CLANGXX}" ${packjit_fuzz_flags} "${packjit_fuzz_probe}.cpp" -o "${packjit_fuzz_probe}"
      RESULT_VARIABLE packjit_fuzz_failed OUTPUT_QUIET ERROR_QUIET)
    if(packjit_fuzz_failed)
      message(STATUS "Fuzz targets: LEFT OUT, ${PACKJIT_CLANGXX} has no libFuzzer runtime (Debian: libclang-rt-14-dev)")
    else()
      message(STATUS "Fuzz targets: with ${PACKJIT_CLANGXX}, ${PACKJIT_FUZZ_SECONDS} s each in the tests")
      set(PACKJIT_FUZZING ON)
    endif()
  else()
    message(STATUS "Fuzz targets: LEFT OUT, no clang++ found (Debian: clang, libclang-rt-14-dev)")
  endif()
endif()

# The libraries may stand outside the compiler's own search path; a package's includes can be empty.
set(packjit_fuzz_includes "")
foreach(package fmt::fmt-header-only nlohmann_json::nlohmann_json)
  get_target_property(includes ${package} INTERFACE_INCLUDE_DIRECTORIES)
  foreach(include ${includes})
    if(IS_DIRECTORY "${include}" AND NOT include STREQUAL "/usr/include")
      list(APPEND packjit_fuzz_includes -isystem "${include}")
    endif()
  endforeach()
endforeach()

set(packjit_fuzz_fmt "")
if(NOT packjit_fmt_source)
  set(packjit_fuzz_fmt -DFMT_HEADER_ONLY=1)
endif()
if(NOT PACKJIT_XXHASH_INCLUDE_DIR STREQUAL "/usr/include")
  list(APPEND packjit_fuzz_includes -isystem "${PACKJIT_XXHASH_INCLUDE_DIR}")
endif()

function(packjit_fuzzer name)
  if(NOT PACKJIT_FUZZING)
    return()
  endif()
  set(objects "")
  foreach(source ${ARGN} ${packjit_fmt_source})
    get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    file(RELATIVE_PATH relative "${CMAKE_SOURCE_DIR}" "${source}")
    string(MAKE_C_IDENTIFIER "${relative}" object)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.dir/${object}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/${name}.dir"
      COMMAND "${PACKJIT_CLANGXX}" -std=c++20 -O1 -g ${packjit_fuzz_flags} ${packjit_fuzz_fmt} "-I${CMAKE_SOURCE_DIR}"
        ${packjit_fuzz_includes}
        -MD -MF "${object}.d" -MT "${object}" -c "${source}" -o "${object}"
      DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "Fuzz target ${name}: ${relative}"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(program "${CMAKE_CURRENT_BINARY_DIR}/${name}.dir/${name}")  # a target may not have the name of a file
  add_custom_command(OUTPUT "${program}"
    COMMAND "${PACKJIT_CLANGXX}" ${packjit_fuzz_flags} ${objects} -o "${program}"
    DEPENDS ${objects} COMMENT "Fuzz target ${name}" VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${program}")

  # New inputs go to the build tree; the corpus in the source tree is only read.
  set(found "${CMAKE_CURRENT_BINARY_DIR}/${name}.dir/found")
  file(MAKE_DIRECTORY "${found}")
  set(seeds "")
  if(IS_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}")
    set(seeds "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}")
  endif()
  math(EXPR limit "${PACKJIT_FUZZ_SECONDS} + 120")
  add_test(NAME fuzz.${name} COMMAND "${program}" -max_total_time=${PACKJIT_FUZZ_SECONDS} -max_len=16384
    -timeout=20 -rss_limit_mb=2048 "-artifact_prefix=${found}/../crash-" -print_final_stats=1 "${found}" ${seeds})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT ${limit} COST ${PACKJIT_FUZZ_SECONDS})
endfunction()
