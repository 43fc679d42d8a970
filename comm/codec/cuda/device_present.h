// Finds out whether there is a device, for the programs that check and measure kernels.
//
// REQUIRES: files that include this header first include the runtime's API, which nvcc
// includes by itself. Tests include fake/runtime.h.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace syncline::gpu {

enum class DevicePresence {
  kPresent,
  kAbsent,  // no device, or no driver
  kBroken,  // the driver does not work, or is too old for this runtime
};

inline DevicePresence FindDevice() {
  int devices = 0;
  int driver_version = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (cudaDriverGetVersion(&driver_version) != cudaSuccess) driver_version = 0;
  if (error == cudaSuccess && devices > 0) return DevicePresence::kPresent;
  const bool has_no_driver = error == cudaErrorInsufficientDriver && driver_version == 0;
  const bool has_no_device = error == cudaSuccess || error == cudaErrorNoDevice;
  return has_no_driver || has_no_device ? DevicePresence::kAbsent
                                        : DevicePresence::kBroken;
}

// Exits with 77 (skipped) if there is no device, and with 1 if one does not work.
inline void RequireDevice() {
  constexpr int kSkipped = 77;
  const DevicePresence presence = FindDevice();
  if (presence == DevicePresence::kPresent) return;
  int devices = 0;
  const char* const why = cudaGetErrorString(cudaGetDeviceCount(&devices));
  const bool is_absent = presence == DevicePresence::kAbsent;
  std::printf("%s: %s\n", is_absent ? "skipped" : "FAILED: the driver does not work",
              devices == 0 && is_absent ? "no CUDA device" : why);
  std::exit(is_absent ? kSkipped : 1);
}

}  // namespace syncline::gpu
