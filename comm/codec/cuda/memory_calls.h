// Implements memory.h in functions that tests can also call on a runtime that fails on
// demand.
//
// REQUIRES: files that include this header first include the runtime's API, as for
// enqueue.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "comm/codec/cuda/enqueue.h"

namespace syncline::gpu {

// A stream of memory.h: a CUDA stream, and an event that a thread sleeps for.
// cudaStreamSynchronize would spin, unless the program had configured its device
// otherwise.
struct EventStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
};

// Returns the first error of two results.
inline int FirstOf(int a, int b) { return a != kSuccess ? a : b; }

inline int UseDevice(int32_t device) { return Reported(cudaSetDevice(device)); }

inline int CreateStream(int32_t device, void** stream) {
  if (stream == nullptr) return kInvalidValue;
  *stream = nullptr;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  std::unique_ptr<EventStream> made(new (std::nothrow) EventStream);
  if (made == nullptr) return cudaErrorMemoryAllocation;
  int error = Reported(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking));
  if (error != kSuccess) return error;
  error = Reported(cudaEventCreateWithFlags(
      &made->done, cudaEventBlockingSync | cudaEventDisableTiming));
  if (error != kSuccess) {
    Reported(cudaStreamDestroy(made->stream));
    return error;
  }
  *stream = made.release();
  return kSuccess;
}

inline int DestroyStream(int32_t device, void* stream) {
  if (stream == nullptr) return kSuccess;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  const std::unique_ptr<EventStream> given(static_cast<EventStream*>(stream));
  const int event = Reported(cudaEventDestroy(given->done));
  return FirstOf(event, Reported(cudaStreamDestroy(given->stream)));
}

inline int WaitForStream(int32_t device, void* stream) {
  if (stream == nullptr) return kInvalidValue;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  const EventStream& given = *static_cast<EventStream*>(stream);
  const int recorded = Reported(cudaEventRecord(given.done, given.stream));
  if (recorded != kSuccess) return recorded;
  return Reported(cudaEventSynchronize(given.done));
}

inline int AllocateZeros(int32_t device, size_t bytes, void** memory) {
  if (memory == nullptr) return kInvalidValue;
  *memory = nullptr;
  if (bytes == 0) return kSuccess;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  void* made = nullptr;
  int error = Reported(cudaMalloc(&made, bytes));
  if (error != kSuccess) return error;
  // The memset is only enqueued, on the default stream, and streams of memory.h do not
  // wait for that stream.
  error = ClearAsync(made, bytes, nullptr);
  if (error == kSuccess) error = Reported(cudaStreamSynchronize(nullptr));
  if (error != kSuccess) {
    Reported(cudaFree(made));
    return error;
  }
  *memory = made;
  return kSuccess;
}

inline int Free(int32_t device, void* memory) {
  if (memory == nullptr) return kSuccess;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  return Reported(cudaFree(memory));
}

inline int AllocatePageLocked(int32_t device, size_t bytes, void** memory) {
  if (memory == nullptr) return kInvalidValue;
  *memory = nullptr;
  if (bytes == 0) return kSuccess;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  void* made = nullptr;
  const int error =
      Reported(cudaHostAlloc(&made, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  if (error == kSuccess) *memory = made;
  return error;
}

inline int FreePageLocked(int32_t device, void* memory) {
  if (memory == nullptr) return kSuccess;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  return Reported(cudaFreeHost(memory));
}

struct CopyOf {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

inline int Copy(int32_t device, const CopyOf& copy, void* stream) {
  if (stream == nullptr) return kInvalidValue;
  if (copy.bytes == 0) return kSuccess;
  if (copy.to == nullptr || copy.from == nullptr) return kInvalidValue;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  // The runtime finds out from the addresses where each side lies.
  return Reported(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault,
                                  static_cast<EventStream*>(stream)->stream));
}

inline int Clear(int32_t device, void* memory, size_t bytes, void* stream) {
  if (stream == nullptr) return kInvalidValue;
  if (bytes == 0) return kSuccess;
  if (memory == nullptr) return kInvalidValue;
  const DeviceGuard guard(device);
  if (guard.error() != kSuccess) return guard.error();
  return ClearAsync(memory, bytes, static_cast<EventStream*>(stream)->stream);
}

}  // namespace syncline::gpu
