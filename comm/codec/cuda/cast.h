// FP32 <-> BF16 on the device: the CUDA form of comm/base/dtype.h, bit for bit.
//
// Both functions only enqueue on the caller's stream: they allocate nothing, do not
// synchronise and may be captured into a CUDA graph. `device` is the ordinal of the
// stream's device, -1: the calling thread's current one. Pointers are memory of that
// device, or page-locked memory of the host; `n` counts elements, the arrays must not
// overlap. Thread-safe. They return the cudaError_t of the launch, 0 is success,
// cudaErrorInvalidValue for null; errors of the kernel itself come with the stream's next
// synchronisation, as always.
//
//   SynclineCudaBf16FromFloat(device, gradient, wire, n, stream);
//
// C linkage and void* for the stream, because the product finds these by name in a module
// opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// Rounds to nearest even; a NaN becomes a quiet NaN of the same sign.
int SynclineCudaBf16FromFloat(int32_t device, const float* values, uint16_t* out,
                              size_t n, void* stream);

// Exact.
int SynclineCudaFloatFromBf16(int32_t device, const uint16_t* values, float* out,
                              size_t n, void* stream);
}
