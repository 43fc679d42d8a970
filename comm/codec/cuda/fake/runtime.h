// The part of CUDA's runtime that the host code of this folder uses, for machines without
// CUDA. Device memory is host memory, streams run their work at once, and captured work
// runs when its graph is launched. It serves two purposes:
//
// - tests of errors that no real device produces on demand (enqueue_test.cc);
// - running the programs that check a device on the emulated GPU (CMakeLists.txt), to
//   show that they work before there is a device.
//
// Names, numbers and meaning are those of cuda_runtime_api.h.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
};
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocPortable = 1;
inline constexpr unsigned cudaHostAllocMapped = 2;

struct CUstream_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
using cudaEvent_t = CUevent_st*;

struct dim3 {
  explicit dim3(unsigned blocks) : x(blocks) {}
  unsigned x;
};
struct cudaDeviceProp {
  char name[256];
};

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** memory, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// The elapsed time is always one millisecond.
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads,
                             void** arguments, size_t shared_bytes, cudaStream_t stream);

namespace syncline::fake {

struct Runtime {
  // Result of cudaGetDeviceCount and cudaDriverGetVersion.
  cudaError_t start_error = cudaSuccess;
  int devices = 1;
  int driver_version = 13000;

  int current_device = 0;
  cudaError_t last_error = cudaSuccess;
  // The next call that enqueues something returns this error and enqueues nothing.
  cudaError_t next_error = cudaSuccess;
  uint32_t launches = 0;  // number of cudaLaunchKernel calls

  // The n-th creation from now (of memory, streams and events) fails. 0: none does.
  uint32_t failing_creation = 0;
  // Error of the kernels that the next synchronisation reports.
  cudaError_t kernel_error = cudaSuccess;
  // Everything that was created and neither freed nor destroyed, with its device. Freeing
  // or destroying anything else is an error.
  std::map<const void*, int> alive = {};
  int device_of_last_work = -1;  // device of the last enqueued work
  bool event_sleeps = false;     // the last event was created with cudaEventBlockingSync
  bool stream_waits_for_others = true;
};
Runtime& TheRuntime();

// Runs `work` at once, or adds it to the graph that the stream captures.
cudaError_t Enqueue(cudaStream_t stream, const std::function<void()>& work);

}  // namespace syncline::fake
