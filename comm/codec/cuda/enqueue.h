// Functions that enqueue work on a stream and handle errors of the CUDA runtime.
//
// CUDA keeps the last error of each thread until it is queried. A call must not take an
// earlier error for its own: its caller would repeat work that was enqueued. It also must
// not leave its own error for others.
//
// REQUIRES: files that include this header first include the runtime's API, which nvcc
// includes by itself. Tests include fake/runtime.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace syncline::gpu {

constexpr int kSuccess = cudaSuccess;
constexpr int kInvalidValue = cudaErrorInvalidValue;

// Returns `error`, the result of a runtime call, and clears CUDA's record of it.
inline int Reported(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

struct GridOf {
  const void* kernel = nullptr;
  uint32_t blocks = 1;
  uint32_t threads = 1;
};

// `arguments` points to each of the kernel's arguments.
inline int LaunchGrid(const GridOf& grid, const void* const* arguments, void* stream) {
  return Reported(cudaLaunchKernel(grid.kernel, dim3(grid.blocks), dim3(grid.threads),
                                   const_cast<void**>(arguments), 0,
                                   static_cast<cudaStream_t>(stream)));
}

inline int ClearAsync(void* memory, size_t bytes, void* stream) {
  return Reported(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)));
}

// Returns success unless the stream captures.
inline int MustNotCapture(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const int error =
      Reported(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  if (error != kSuccess) return error;
  return status == cudaStreamCaptureStatusNone ? kSuccess
                                               : cudaErrorStreamCaptureUnsupported;
}

// Makes `device` the thread's current device, and restores the previous one at the end.
// -1: does nothing.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) {
    if (device < 0) return;
    int current = 0;
    error_ = Reported(cudaGetDevice(&current));
    if (error_ != kSuccess || current == device) return;
    error_ = Reported(cudaSetDevice(device));
    if (error_ == kSuccess) before_ = current;
  }
  ~DeviceGuard() {
    if (before_ >= 0) Reported(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  int error() const { return error_; }

 private:
  int error_ = kSuccess;
  int before_ = -1;
};

}  // namespace syncline::gpu
