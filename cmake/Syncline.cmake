# The three functions that every folder's CMakeLists.txt uses. A folder is one target, named after its path:
# comm/transport/ucx is comm_transport_ucx. Include paths start at the repository root.
#
#   syncline_library(NAME comm_base DEPS absl::status)
#       all *.cc of the folder except tests, benchmarks, fuzzers and main.cc; the folder may have only headers
#   syncline_test(NAME comm_base_test DEPS comm_base)
#       all *_test.cc of the folder, with gmock; one ctest entry for each TEST
#   syncline_executable(NAME syncline DEPS cli)
#       main.cc of the folder; the binary is in the root of the build tree
#
# SOURCES replaces the glob. ISAS runs a test again for each lower instruction-set level (comm/base/isa.h).
# WHOLE makes all tests of a binary one ctest entry. It is for many fast tests, because each entry is a process.
# THREADS says that the tested code runs in several threads. A tree for ThreadSanitizer has only these tests.
# Under a sanitizer, tests without THREADS are WHOLE, and run only at the machine's own instruction-set level, because
# starting a process takes longer there than most tests.
# Tests also have LABELS (one of unit, the default, integration and slow) and TIMEOUT (seconds per TEST, default 120).
# CI runs the sanitizers on the label unit. Integration tests run alone, because their processes have timeouts that
# another busy test could exceed.
#
# The target unit_tests builds all tests with the label unit.

include(GoogleTest)
# Tests are compiled with less optimisation, which took half of their compile time for code that runs once. The tested
# code is compiled as in the product.
set(SYNCLINE_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
if(SYNCLINE_SANITIZE)
  set(SYNCLINE_TEST_OPTIONS -O0)
endif()
if(SYNCLINE_TESTS)
  add_custom_target(unit_tests)
  if(SYNCLINE_SANITIZE)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options(-fpch-preprocess)
    endif()
    syncline_compile_heavy_headers()
  endif()
endif()

function(syncline_glob out)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARGN})
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# Adds the objects that a sanitizer needs; see cmake/sanitizers/README.md.
function(syncline_add_sanitizer_objects target)
  if(TARGET syncline_asan_openssl)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:syncline_asan_openssl>)
  endif()
  if(TARGET syncline_tsan_absl)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:syncline_tsan_absl>)
    target_link_libraries(${target} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

function(syncline_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SOURCES)
    syncline_glob(ARG_SOURCES *.cc)
    list(FILTER ARG_SOURCES EXCLUDE REGEX "(_test|_bench|_fuzz|^main)\\.cc$")
  endif()
  if(ARG_SOURCES)
    add_library(${ARG_NAME} STATIC ${ARG_SOURCES})
    target_link_libraries(${ARG_NAME} PUBLIC syncline_options ${ARG_DEPS})
    if(SYNCLINE_SANITIZE STREQUAL "address")
      # These libraries compute, and read bytes of the wire in place, so they are optimised and check alignment. The
      # others are not optimised, to compile faster.
      if(ARG_NAME MATCHES "^(comm|server_shard|server_optimizer)")
        target_compile_options(${ARG_NAME} PRIVATE -fsanitize=alignment)
      else()
        target_compile_options(${ARG_NAME} PRIVATE -O0)
      endif()
    endif()
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE syncline_options ${ARG_DEPS})
  endif()
endfunction()

function(syncline_executable)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES main.cc)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE syncline_options ${ARG_DEPS})
  syncline_add_sanitizer_objects(${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# Lets a test open the emulated GPU as the product opens the CUDA module (comm/device/device_for_test.h).
function(syncline_uses_emulated_gpu name)
  if(NOT TARGET ${name})
    return()
  endif()
  add_dependencies(${name} syncline_cuda_fake)
  target_compile_definitions(${name} PRIVATE SYNCLINE_TEST_CUDA_FAKE="$<TARGET_FILE:syncline_cuda_fake>")
endfunction()

function(syncline_test)
  cmake_parse_arguments(ARG "ISAS;WHOLE;THREADS" "NAME;LABELS;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT SYNCLINE_TESTS OR (SYNCLINE_SANITIZE STREQUAL "thread" AND NOT ARG_THREADS))
    return()
  endif()
  if(NOT ARG_SOURCES)
    syncline_glob(ARG_SOURCES *_test.cc)
  endif()
  if(NOT ARG_SOURCES)
    message(WARNING "${ARG_NAME}: no *_test.cc in ${CMAKE_CURRENT_SOURCE_DIR}")
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE syncline_options ${ARG_DEPS} GTest::gmock_main)
  target_compile_options(${ARG_NAME} PRIVATE ${SYNCLINE_TEST_OPTIONS})
  if(SYNCLINE_SANITIZE)
    syncline_use_heavy_headers(${ARG_NAME})
  endif()
  syncline_add_sanitizer_objects(${ARG_NAME})
  set(serial FALSE)
  if(ARG_LABELS STREQUAL "integration")
    set(serial TRUE)
  endif()
  if(ARG_LABELS STREQUAL "unit")
    add_dependencies(unit_tests ${ARG_NAME})
  endif()
  if(SYNCLINE_SANITIZE AND NOT ARG_THREADS)
    set(ARG_WHOLE TRUE)
    set(ARG_TIMEOUT 900)
  endif()
  if(ARG_WHOLE)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${serial})
  else()
    # With PRE_TEST, a test binary that crashes at the start fails its tests, not the build.
    gtest_discover_tests(
      ${ARG_NAME}
      DISCOVERY_MODE PRE_TEST
      DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${serial})
  endif()
  if(ARG_ISAS AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT SYNCLINE_SANITIZE)
    foreach(isa v2 v3)
      add_test(NAME "${ARG_NAME} on x86-64-${isa}" COMMAND ${ARG_NAME})
      set_tests_properties("${ARG_NAME} on x86-64-${isa}" PROPERTIES
        ENVIRONMENT SYNCLINE_ISA=${isa} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
    endforeach()
  endif()
endfunction()
