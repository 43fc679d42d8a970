#include "comm/codec/cuda/fake/runtime.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

using Work = std::vector<std::function<void()>>;

void RunAll(const Work& work) {
  for (const auto& one : work) one();
}

// cudaMalloc aligns to 256 bytes.
constexpr size_t kAlignment = 256;

cudaError_t Failed(cudaError_t error) {
  syncline::fake::TheRuntime().last_error = error;
  return error;
}

}  // namespace

struct CUstream_st {
  bool captures = false;
  Work captured = {};
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};
struct CUevent_st {};

namespace syncline::fake {

Runtime& TheRuntime() {
  static Runtime runtime;
  return runtime;
}

cudaError_t Enqueue(cudaStream_t stream, const std::function<void()>& work) {
  const cudaError_t error = std::exchange(TheRuntime().next_error, cudaSuccess);
  if (error != cudaSuccess) return Failed(error);
  if (stream != nullptr && stream->captures) {
    stream->captured.push_back(work);
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace syncline::fake

using syncline::fake::TheRuntime;

cudaError_t cudaGetLastError() {
  return std::exchange(TheRuntime().last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the fake runtime";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheRuntime().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheRuntime().devices;
  return TheRuntime().start_error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::strcpy(properties->name, "fake");
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = TheRuntime().current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= TheRuntime().devices) return Failed(cudaErrorInvalidDevice);
  TheRuntime().current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory =
      std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [=] {
    if (bytes > 0) std::memset(memory, value, bytes);
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream->captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stream->captures = false;
  *graph = new CUgraph_st{.work = std::exchange(stream->captured, {})};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->captures ? cudaStreamCaptureStatusActive
                                                  : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *executable = new CUgraphExec_st{.work = graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [executable] { RunAll(executable->work); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*begin*/, cudaEvent_t /*end*/) {
  *ms = 1;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* /*kernel*/, dim3 /*blocks*/, dim3 /*threads*/,
                             void** /*arguments*/, size_t /*shared_bytes*/,
                             cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [] { ++TheRuntime().launches; });
}
