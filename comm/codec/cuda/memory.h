// Streams and memory of a device, for a program that does not link CUDA: what it needs in
// order to call codecs.h and cast.h.
//
//   void* stream;
//   void* gradient;
//   SynclineCudaStreamCreate(device, &stream);
//   SynclineCudaAllocate(device, bytes, &gradient);
//   SynclineCudaCopy(device, gradient, from_host, bytes, stream);
//   SynclineCudaEncode(&codec, &encoding, SynclineCudaStreamHandle(stream));
//   SynclineCudaStreamWait(device, stream);  // then the host may read what was written
//
// `device` is the ordinal of the device that the stream or the memory belongs to; -1: the
// calling thread's current device. The thread's current device is the same after each
// call.
//
// All functions return a cudaError_t: 0 is success, cudaErrorInvalidValue means that a
// required result or array is null. They neither report earlier errors of other code nor
// leave their own behind. SynclineCudaErrorString says what an error means. After an
// error, pointers to results are null. Errors of kernels appear at
// SynclineCudaStreamWait; after most of them every call of this process on the device
// fails.
//
// Thread-safe: any thread may call. Threads that share a stream must agree on the order
// of their work, and must not use what another thread destroys. Creating, allocating and
// freeing may wait for all work of the device, so do them before a job's steps. They are
// forbidden while any thread captures a stream.
//
// The interface has C linkage and uses void*, because the product finds the functions by
// name in a module that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Makes `device` the calling thread's current device permanently, for threads that use no
// other. Otherwise each call restores the previous device, which also creates a context
// there that takes some hundred MB of that device's memory.
int SynclineCudaUseDevice(int32_t device);

// Creates a stream that is independent of the default stream. Copy, Clear, Wait and
// Destroy take `*stream`; kernels take its handle.
int SynclineCudaStreamCreate(int32_t device, void** stream);

// Destroys a stream. Enqueued work still runs. Null: does nothing.
int SynclineCudaStreamDestroy(int32_t device, void* stream);

// Returns when all enqueued work is done. The thread sleeps while it waits.
int SynclineCudaStreamWait(int32_t device, void* stream);

// Returns the cudaStream_t that codecs.h and cast.h take.
void* SynclineCudaStreamHandle(void* stream);

// Allocates memory of the device, filled with zeros and aligned to 256 bytes; null if
// `bytes` is 0. The host must not access it.
int SynclineCudaAllocate(int32_t device, size_t bytes, void** memory);

// Frees memory, after waiting for kernels that may use it. Null: does nothing.
int SynclineCudaFree(int32_t device, void* memory);

// Allocates page-locked memory of the host, with any content, aligned to 256 bytes; null
// if `bytes` is 0. Kernels of every device can access it at the same address.
int SynclineCudaAllocateHost(int32_t device, size_t bytes, void** memory);

// Does the same as SynclineCudaFree for memory of SynclineCudaAllocateHost.
int SynclineCudaFreeHost(int32_t device, void* memory);

// Enqueues a copy. Either side may be memory of a device or of the host, and must exist
// until the copy is done. If host memory is not page-locked, this call blocks.
int SynclineCudaCopy(int32_t device, void* to, const void* from, size_t bytes,
                     void* stream);

// Enqueues writing zeros to memory of a device.
int SynclineCudaClear(int32_t device, void* memory, size_t bytes, void* stream);
}
