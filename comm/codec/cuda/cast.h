// FP32 <-> BF16 on the device: the CUDA form of comm/base/dtype.h, bit for bit.
//
// Both functions only enqueue work on the caller's stream: they allocate nothing, do not
// synchronise and may be captured into a CUDA graph. `device` is the ordinal of the
// stream's device; -1: the calling thread's current device. Pointers refer to memory of
// that device, or to page-locked memory of the host. `n` counts elements, and the arrays
// must not overlap. Thread-safe. They return the cudaError_t of the launch: 0 is success,
// cudaErrorInvalidValue means null pointers. Errors of the kernel itself appear at the
// stream's next synchronisation, as usual.
//
//   SynclineCudaBf16FromFloat(device, gradient, wire, n, stream);
//
// The interface has C linkage and uses void* for the stream, because the product finds
// the functions by name in a module that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// Rounds to nearest even. A NaN becomes a quiet NaN of the same sign.
int SynclineCudaBf16FromFloat(int32_t device, const float* values, uint16_t* out,
                              size_t n, void* stream);

// Widens exactly.
int SynclineCudaFloatFromBf16(int32_t device, const uint16_t* values, float* out,
                              size_t n, void* stream);
}
