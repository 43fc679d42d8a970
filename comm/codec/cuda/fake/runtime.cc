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
constexpr size_t kMaxBytes = size_t{16} << 30;

// Neither zeros nor small numbers.
constexpr int kGarbage = 0xa5;

cudaError_t Failed(cudaError_t error) {
  syncline::fake::TheRuntime().last_error = error;
  return error;
}

// Returns success if something may be created now.
cudaError_t MayCreate() {
  syncline::fake::Runtime& runtime = syncline::fake::TheRuntime();
  const bool fails = runtime.failing_creation == 1;
  if (runtime.failing_creation > 0) --runtime.failing_creation;
  return fails ? Failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

template <typename T>
cudaError_t Created(T** out, T* made) {
  *out = made;
  syncline::fake::Runtime& runtime = syncline::fake::TheRuntime();
  runtime.alive[made] = runtime.current_device;
  return cudaSuccess;
}

// Removes `what` from the living objects. Returns success if it was one.
cudaError_t Take(const void* what) {
  const bool was_there = syncline::fake::TheRuntime().alive.erase(what) != 0;
  return was_there ? cudaSuccess : Failed(cudaErrorInvalidValue);
}

cudaError_t AllocateGarbage(void** memory, size_t bytes) {
  const cudaError_t error = MayCreate();
  if (error != cudaSuccess) return error;
  if (bytes > kMaxBytes) return Failed(cudaErrorMemoryAllocation);
  const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const made = std::aligned_alloc(kAlignment, whole);
  std::memset(made, kGarbage, whole);
  return Created(memory, made);
}

cudaError_t FreeMemory(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const cudaError_t error = Take(memory);
  if (error == cudaSuccess) std::free(memory);
  return error;
}

cudaError_t Synchronize() {
  const cudaError_t error =
      std::exchange(syncline::fake::TheRuntime().kernel_error, cudaSuccess);
  return error == cudaSuccess ? error : Failed(error);
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
  TheRuntime().device_of_last_work = TheRuntime().current_device;
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
cudaError_t cudaDeviceSynchronize() { return Synchronize(); }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return AllocateGarbage(memory, bytes);
}
cudaError_t cudaFree(void* memory) { return FreeMemory(memory); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  return AllocateGarbage(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return FreeMemory(memory); }
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
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const cudaError_t error = MayCreate();
  if (error != cudaSuccess) return error;
  TheRuntime().stream_waits_for_others = (flags & cudaStreamNonBlocking) == 0;
  return Created(stream, new CUstream_st);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = Take(stream);
  if (error == cudaSuccess) delete stream;
  return error;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return Synchronize(); }
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
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const cudaError_t error = MayCreate();
  if (error != cudaSuccess) return error;
  TheRuntime().event_sleeps = (flags & cudaEventBlockingSync) != 0;
  return Created(event, new CUevent_st);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = Take(event);
  if (error == cudaSuccess) delete event;
  return error;
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [] {});
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return Synchronize(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*begin*/, cudaEvent_t /*end*/) {
  *ms = 1;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* /*kernel*/, dim3 /*blocks*/, dim3 /*threads*/,
                             void** /*arguments*/, size_t /*shared_bytes*/,
                             cudaStream_t stream) {
  return syncline::fake::Enqueue(stream, [] { ++TheRuntime().launches; });
}
