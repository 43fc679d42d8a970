# Adds the sanitizer of SYNCLINE_SANITIZE to every target. Code can check `#ifdef SYNCLINE_SANITIZED`, for example to
# turn off target_clones, whose resolvers run before the sanitizer's runtime has started, and crash.

if(SYNCLINE_SANITIZE STREQUAL "address")
  # Checking every pointer's value costs as much compile time as all other checks together. AddressSanitizer finds
  # null pointers anyway. Alignment matters only in code that reads bytes of the wire in place: see syncline_library.
  set(sanitize -fsanitize=address,undefined -fno-sanitize=null,alignment -fno-sanitize-recover=all)
elseif(SYNCLINE_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
else()
  message(FATAL_ERROR "SYNCLINE_SANITIZE must be empty, address or thread, not '${SYNCLINE_SANITIZE}'")
endif()
add_compile_options(${sanitize} -fno-omit-frame-pointer)
add_link_options(${sanitize})
add_compile_definitions(SYNCLINE_SANITIZED)

# Most tests include the same headers, and these are compiled once for all tests. This is done only under a sanitizer, so
# that the release build still finds a source that lacks an include. It is not done for libraries, because GCC 12 crashes
# if a library is optimised differently from the headers.
set(SYNCLINE_HEAVY_HEADERS
    <algorithm>
    <array>
    <atomic>
    <chrono>
    <filesystem>
    <fstream>
    <functional>
    <map>
    <memory>
    <optional>
    <random>
    <set>
    <span>
    <sstream>
    <string>
    <string_view>
    <thread>
    <utility>
    <variant>
    <vector>
    <absl/container/inlined_vector.h>
    <absl/status/status.h>
    <absl/status/statusor.h>
    <absl/strings/str_cat.h>
    <absl/strings/str_format.h>
    <absl/strings/str_join.h>
    <absl/strings/str_split.h>
    <absl/synchronization/mutex.h>
    <absl/time/clock.h>
    <absl/time/time.h>
    <gmock/gmock.h>
    <gtest/gtest.h>)

# Adds the target syncline_heavy. Call it once the dependencies are known, and syncline_use_heavy_headers for each test.
# ccache compares a checksum of the inputs (.sum) instead of the result of 150 MB.
function(syncline_compile_heavy_headers)
  execute_process(COMMAND dpkg-query -W libabsl-dev libgmock-dev libgtest-dev "libstdc++-*-dev" libc6-dev
                  OUTPUT_VARIABLE packages ERROR_QUIET)
  string(SHA256 went_in "${SYNCLINE_HEAVY_HEADERS} ${CMAKE_CXX_COMPILER_VERSION} ${packages}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(source ${CMAKE_BINARY_DIR}/heavy_headers.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
    add_executable(syncline_heavy ${source})
    target_precompile_headers(syncline_heavy PRIVATE ${SYNCLINE_HEAVY_HEADERS})
    target_link_libraries(syncline_heavy PRIVATE syncline_options absl::statusor GTest::gmock)
    target_compile_options(syncline_heavy PRIVATE ${SYNCLINE_TEST_OPTIONS})
    set_target_properties(syncline_heavy PROPERTIES CXX_COMPILER_LAUNCHER "")
    set(sum ${CMAKE_BINARY_DIR}/CMakeFiles/syncline_heavy.dir/cmake_pch.hxx.gch.sum)
    file(CONFIGURE OUTPUT ${sum} CONTENT "${went_in}\n")
    return()
  endif()
  # Clang writes the name of what it compiles into the result, from where ccache would pass it to builds in other folders.
  # The standard input has no name.
  list(TRANSFORM SYNCLINE_HEAVY_HEADERS PREPEND "#include " OUTPUT_VARIABLE includes)
  list(JOIN includes "\n" includes)
  set(header ${CMAKE_BINARY_DIR}/heavy_headers.h)
  set(compiled ${CMAKE_BINARY_DIR}/heavy_headers.pch)
  file(CONFIGURE OUTPUT ${header} CONTENT "${includes}\n")
  file(CONFIGURE OUTPUT ${compiled}.sum CONTENT "${went_in}\n")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
  get_directory_property(options COMPILE_OPTIONS)
  add_custom_command(
    OUTPUT ${compiled}
    COMMAND ${CMAKE_CXX_COMPILER} ${flags} -fPIE -std=c++20 ${options} ${SYNCLINE_TEST_OPTIONS} -DGTEST_HAS_PTHREAD=1
            "$<TARGET_PROPERTY:syncline_options,INTERFACE_COMPILE_OPTIONS>" -fpch-instantiate-templates -MD -MT ${compiled} -MF ${compiled}.d -x c++-header - -o ${compiled} < ${header}
    DEPENDS ${header}
    DEPFILE ${compiled}.d
    COMMENT "Compiling the headers of all tests"
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(syncline_heavy DEPENDS ${compiled})
endfunction()

function(syncline_use_heavy_headers test)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${test} REUSE_FROM syncline_heavy)
  else()
    add_dependencies(${test} syncline_heavy)
    target_compile_options(${test} PRIVATE "SHELL:-include-pch ${CMAKE_BINARY_DIR}/heavy_headers.pch")
  endif()
endfunction()
