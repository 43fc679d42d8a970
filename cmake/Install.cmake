# cmake --install build/release --prefix P:
#
#   P/bin/syncline                       the one binary
#   P/lib/libsyncline.so                 the client
#   P/lib/libsyncline_cuda.so            the client's GPU code, if CMake found nvcc
#   P/include/syncline*.h, syncline.hpp  its interface for C, and for C++17
#   P/lib/cmake/Syncline                 find_package(Syncline), which defines syncline::client
#   P/lib/pkgconfig/syncline.pc          pkg-config syncline
#
# P may be moved, because it contains no path of its own.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Syncline)
# The targets that are part of the wheel (worker/python/build_wheel.py).
add_custom_target(wheel_files)
add_dependencies(wheel_files syncline syncline_c)
install(TARGETS syncline syncline_c EXPORT SynclineTargets)
if(TARGET syncline_cuda)
  add_dependencies(wheel_files syncline_cuda)
  install(TARGETS syncline_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES worker/c/syncline.h worker/c/syncline_collective.h worker/c/syncline.hpp TYPE INCLUDE)
file(RELATIVE_PATH SYNCLINE_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(worker/c/syncline.pc.in ${CMAKE_BINARY_DIR}/syncline.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/syncline.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(EXPORT SynclineTargets NAMESPACE syncline:: DESTINATION ${package_dir})
file(WRITE ${CMAKE_BINARY_DIR}/SynclineConfig.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/SynclineTargets.cmake)\n")
# Below 1.0 a minor version may change the CMake package. The library's own promise is its SOVERSION.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/SynclineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/SynclineConfig.cmake ${CMAKE_BINARY_DIR}/SynclineConfigVersion.cmake
        DESTINATION ${package_dir})
