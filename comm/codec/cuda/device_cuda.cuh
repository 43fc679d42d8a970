// The operations of device.cuh in CUDA.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "comm/codec/cuda/enqueue.h"

#define SYNCLINE_GPU gpu
#define SYNCLINE_DEVICE __device__ __forceinline__
#define SYNCLINE_HOST_DEVICE __host__ __device__ inline
#define SYNCLINE_UNROLL _Pragma("unroll")

namespace syncline::gpu {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

SYNCLINE_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
SYNCLINE_DEVICE uint32_t BlockIndex() { return blockIdx.x; }

SYNCLINE_DEVICE void BlockBarrier() { __syncthreads(); }
SYNCLINE_DEVICE void WarpBarrier() { __syncwarp(); }
SYNCLINE_DEVICE uint32_t WarpBallot(bool vote) {
  return __ballot_sync(kAllLanes, vote ? 1 : 0);
}
SYNCLINE_DEVICE uint32_t WarpMax(uint32_t value) {
  return __reduce_max_sync(kAllLanes, value);
}
SYNCLINE_DEVICE uint32_t WarpShuffleXor(uint32_t value, uint32_t mask) {
  return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
}
// Return the value from `delta` lanes above or below, or the lane's own value if there is
// no such lane.
SYNCLINE_DEVICE float WarpShuffleDown(float value, uint32_t delta) {
  return __shfl_down_sync(kAllLanes, value, delta);
}
SYNCLINE_DEVICE uint32_t WarpShuffleUp(uint32_t value, uint32_t delta) {
  return __shfl_up_sync(kAllLanes, value, delta);
}

SYNCLINE_DEVICE uint32_t AtomicAdd(uint32_t* to, uint32_t value) {
  return atomicAdd(to, value);
}

// Access words that other blocks of the grid may write at the same time, bypassing this
// block's cache. Fence orders earlier writes before later ones.
SYNCLINE_DEVICE uint32_t LoadFresh(const uint32_t* from) {
  return *static_cast<const volatile uint32_t*>(from);
}
SYNCLINE_DEVICE float LoadFresh(const float* from) {
  return *static_cast<const volatile float*>(from);
}
template <typename T>
SYNCLINE_DEVICE void StoreFresh(T* to, T value) {
  *static_cast<volatile T*>(to) = value;
}
SYNCLINE_DEVICE void Fence() { __threadfence(); }
// For loops that wait for another block.
SYNCLINE_DEVICE void Pause() { __nanosleep(64); }

SYNCLINE_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
SYNCLINE_DEVICE float Subtract(float a, float b) { return __fsub_rn(a, b); }
SYNCLINE_DEVICE float Multiply(float a, float b) { return __fmul_rn(a, b); }
SYNCLINE_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
SYNCLINE_DEVICE uint32_t BitsOf(float value) { return __float_as_uint(value); }
SYNCLINE_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
SYNCLINE_DEVICE float WidenF16(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
SYNCLINE_DEVICE uint32_t PopCount(uint32_t bits) {
  return static_cast<uint32_t>(__popc(bits));
}

// Ends the kernel with an error. All other work of this process on the device fails too.
SYNCLINE_DEVICE void Trap() { __trap(); }

// Minimum number of blocks on a multiprocessor. Four leave 64 registers for a thread;
// gpu-check measures other numbers.
#ifndef SYNCLINE_CUDA_BLOCKS
#define SYNCLINE_CUDA_BLOCKS 4
#endif

template <typename Kernel>
__global__ void __launch_bounds__(kThreads, SYNCLINE_CUDA_BLOCKS)
    RunKernel(const __grid_constant__ typename Kernel::Arguments arguments) {
  __shared__ typename Kernel::Shared shared;
  Kernel::Run(shared, arguments);
}

template <typename Kernel>
int Launch(uint32_t blocks, const typename Kernel::Arguments& arguments, void* stream) {
  const void* const given[] = {&arguments};
  return LaunchGrid({.kernel = reinterpret_cast<const void*>(&RunKernel<Kernel>),
                     .blocks = blocks,
                     .threads = kThreads},
                    given, stream);
}

}  // namespace syncline::gpu
