#include "comm/codec/cuda/cast.h"

#include <algorithm>

#include "comm/codec/cuda/enqueue.h"

namespace {

constexpr unsigned kThreads = 256;
// Enough blocks to fill any current device; the grid-stride loop processes the rest.
constexpr size_t kMaxBlocks = 132 * 16;

__device__ uint16_t RoundToBf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ float WidenBf16(uint16_t value) {
  return __uint_as_float(static_cast<uint32_t>(value) << 16);
}

__device__ size_t FirstIndex() { return blockIdx.x * size_t{blockDim.x} + threadIdx.x; }
__device__ size_t Stride() { return gridDim.x * size_t{blockDim.x}; }

__global__ void Bf16FromFloatKernel(const float* __restrict__ values,
                                    uint16_t* __restrict__ out, size_t n) {
  for (size_t i = FirstIndex(); i < n; i += Stride()) out[i] = RoundToBf16(values[i]);
}

__global__ void FloatFromBf16Kernel(const uint16_t* __restrict__ values,
                                    float* __restrict__ out, size_t n) {
  for (size_t i = FirstIndex(); i < n; i += Stride()) out[i] = WidenBf16(values[i]);
}

unsigned Blocks(size_t n) {
  return static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks));
}

template <typename From, typename To>
struct CastOf {
  void (*kernel)(const From*, To*, size_t);
  const From* values;
  To* out;
  size_t n;
};

// Handles an empty array, since a launch of zero blocks is an error in CUDA.
template <typename From, typename To>
int Enqueue(int32_t device, const CastOf<From, To>& cast, void* stream) {
  if (cast.n == 0) return cudaSuccess;
  if (cast.values == nullptr || cast.out == nullptr) return cudaErrorInvalidValue;
  const syncline::gpu::DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return guard.error();
  const void* const arguments[] = {&cast.values, &cast.out, &cast.n};
  return syncline::gpu::LaunchGrid({.kernel = reinterpret_cast<const void*>(cast.kernel),
                                    .blocks = Blocks(cast.n),
                                    .threads = kThreads},
                                   arguments, stream);
}

}  // namespace

extern "C" int SynclineCudaBf16FromFloat(int32_t device, const float* values,
                                         uint16_t* out, size_t n, void* stream) {
  return Enqueue<float, uint16_t>(device, {&Bf16FromFloatKernel, values, out, n}, stream);
}

extern "C" int SynclineCudaFloatFromBf16(int32_t device, const uint16_t* values,
                                         float* out, size_t n, void* stream) {
  return Enqueue<uint16_t, float>(device, {&FloatFromBf16Kernel, values, out, n}, stream);
}
