// What libsyncline_cuda_fake.so exports beside what the real module does (module_abi.h,
// codecs.h, cast.h, memory.h): how tests make it fail, and see what it holds. To be found
// by name, as the rest.
//
//   const CudaProbe probe = ProbeCudaModule(path);
//   auto* const fail_after = reinterpret_cast<decltype(&SynclineCudaFakeFailAfter)>(
//       dlsym(probe.module, "SynclineCudaFakeFailAfter"));
//   fail_after(3);
//
// Thread-safe.
#pragma once

#include <cstddef>

extern "C" {
// The n-th call from now that enqueues something (Encode, DecodeAdd, a cast, Copy, Clear
// or StreamWait) fails, and as on a broken device all such calls after it, and all that
// create or allocate. 0: the device works again. At first, n is what the environment's
// SYNCLINE_FAKE_CUDA_FAILS says.
void SynclineCudaFakeFailAfter(int n);

// Bytes of memory, of devices and page-locked, that are not freed.
size_t SynclineCudaFakeAllocatedBytes();
}
