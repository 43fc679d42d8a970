// Streams and memory of a device, for a program that does not link CUDA: what it takes to
// call codecs.h and cast.h.
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
// calling thread's current one. The current device is afterwards what it was before.
//
// All return a cudaError_t, 0 is success, cudaErrorInvalidValue for null where a result
// or an array belongs. An error that something else left behind is not theirs, and theirs
// is left to nobody (SynclineCudaErrorString says what it means). After an error, what
// would have been made is null. Errors of kernels come with SynclineCudaStreamWait; after
// most of them no call of this process on the device succeeds any more.
//
// Thread-safe: any thread may call. Threads that share a stream must agree on the order
// of what they enqueue, and nobody may use what another destroys. Creating, allocating
// and freeing may wait for all work of the device, so do them before a job's steps; they
// are forbidden while any thread captures a stream.
//
// C linkage and void*, because the product finds these by name in a module opened at run
// time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The calling thread's current device becomes this one and stays it: for threads that use
// nothing else. Otherwise each call sets the one before again, which makes a context on
// that device, too, some hundred MB of its memory.
int SynclineCudaUseDevice(int32_t device);

// A stream that neither waits for the default stream nor holds it up. Copy, Clear, Wait
// and Destroy take `*stream`; kernels take its handle.
int SynclineCudaStreamCreate(int32_t device, void** stream);

// What was enqueued still runs. Null is nothing to do.
int SynclineCudaStreamDestroy(int32_t device, void* stream);

// Returns once all that was enqueued is done; the thread sleeps meanwhile.
int SynclineCudaStreamWait(int32_t device, void* stream);

// The stream as codecs.h and cast.h take it, a cudaStream_t.
void* SynclineCudaStreamHandle(void* stream);

// Memory of the device, zeros, aligned to 256 bytes; null for none. The host must not
// touch it.
int SynclineCudaAllocate(int32_t device, size_t bytes, void** memory);

// Waits for kernels that may use it. Null is nothing to do.
int SynclineCudaFree(int32_t device, void* memory);

// Page-locked memory of the host, of any content, aligned to 256 bytes; null for none.
// Kernels of every device read and write it at the same address.
int SynclineCudaAllocateHost(int32_t device, size_t bytes, void** memory);

// The same for memory of AllocateHost.
int SynclineCudaFreeHost(int32_t device, void* memory);

// Enqueues a copy. Either side may be memory of a device or of the host; it must stay
// until the copy is done. Host memory that is not page-locked makes this call wait.
int SynclineCudaCopy(int32_t device, void* to, const void* from, size_t bytes,
                     void* stream);

// Enqueues writing zeros to memory of a device.
int SynclineCudaClear(int32_t device, void* memory, size_t bytes, void* stream);
}
