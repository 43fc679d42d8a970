// The functions that libsyncline_cuda_fake.so exports in addition to those of the real
// module (module_abi.h, codecs.h, cast.h, memory.h). With them tests make it fail, and
// see what it holds. They are found by name, like the rest.
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
// or StreamWait) fails. As on a broken device, all such calls after it fail too, and all
// that create or allocate. 0: the device works again. The environment variable
// SYNCLINE_FAKE_CUDA_FAILS sets the initial n.
void SynclineCudaFakeFailAfter(int n);

// Returns the bytes of device and page-locked memory that are not freed.
size_t SynclineCudaFakeAllocatedBytes();
}
