# Defines how every Syncline target is compiled: the interface target `syncline_options`.

set(SYNCLINE_CUDA AUTO CACHE STRING "Build the CUDA module: AUTO (where nvcc is found), ON, OFF")
set(SYNCLINE_SANITIZE "" CACHE STRING "Empty, 'address' (with undefined behaviour) or 'thread'")
option(SYNCLINE_TESTS "Build the tests" ON)
set_property(CACHE SYNCLINE_CUDA PROPERTY STRINGS AUTO ON OFF)
set_property(CACHE SYNCLINE_SANITIZE PROPERTY STRINGS "" address thread)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(SYNCLINE_CCACHE ccache)
if(SYNCLINE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the source folder are hashed as relative ones, so that other clones and worktrees share the cache. The
  # included files come from the compiler's list, which takes no second run of the preprocessor.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 ${SYNCLINE_CCACHE})
endif()

add_library(syncline_options INTERFACE)
target_include_directories(syncline_options INTERFACE ${CMAKE_SOURCE_DIR})
target_link_libraries(syncline_options INTERFACE Threads::Threads)
target_compile_definitions(syncline_options INTERFACE SYNCLINE_VERSION="${PROJECT_VERSION}")
target_compile_options(
  syncline_options
  INTERFACE
    -Wall
    -Wextra
    -Werror
    # No fused multiply-add. Kernels are cloned per instruction set, and a clone that contracts a*b+c would round
    # differently from one that cannot. Bit-identical weights need the same rounding everywhere.
    -ffp-contract=off
    # Without it sqrtf may set errno, which keeps loops from vectorising (4-6 times slower).
    -fno-math-errno)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's flow warnings also check inlined library code, and are too often wrong to stop a build.
  target_compile_options(
    syncline_options INTERFACE -Wno-error=restrict -Wno-error=array-bounds -Wno-error=stringop-overflow
                               -Wno-error=maybe-uninitialized)
else()
  target_compile_options(syncline_options INTERFACE -Wthread-safety)
endif()

foreach(linker mold lld)
  find_program(SYNCLINE_LD_${linker} ld.${linker})
  if(SYNCLINE_LD_${linker})
    target_link_options(syncline_options INTERFACE -fuse-ld=${linker})
    break()
  endif()
endforeach()

if(SYNCLINE_SANITIZE)
  include(${CMAKE_CURRENT_LIST_DIR}/Sanitize.cmake)
endif()
