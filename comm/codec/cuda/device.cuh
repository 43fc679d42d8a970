// The few operations of a GPU that the kernels of this folder use. They exist twice: as
// CUDA for nvcc, and as C++ on an emulated GPU (emulator/) for other compilers. So ctest
// runs the same kernel source on machines without CUDA.
//
// A kernel is a struct; Launch<Kernel>(blocks, arguments, stream) starts `blocks` blocks
// of kThreads threads:
//
//   struct Doubling {
//     struct Arguments { float* values = nullptr; };
//     struct Shared { float values[kThreads]; };   // shared memory, not initialised
//     SYNCLINE_DEVICE static void Run(Shared& shared, const Arguments& arguments);
//   };
//
// Operations named Warp... are collective: all 32 threads of a warp must call them
// together. Add, Subtract, Multiply and Divide round once each and are never fused, so
// that the GPU, the emulator and the CPU codecs give the same bits.
#pragma once

#ifdef __CUDACC__
#include "comm/codec/cuda/device_cuda.cuh"
#else
#include "comm/codec/cuda/emulator/device_emulated.h"
#endif

namespace syncline::SYNCLINE_GPU {

// Four neighbours in memory, read and written together. REQUIRES: aligned to the size of
// Four<T>.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

SYNCLINE_DEVICE uint32_t Lane() { return ThreadIndex() % kWarp; }
SYNCLINE_DEVICE uint32_t Warp() { return ThreadIndex() / kWarp; }

SYNCLINE_DEVICE uint32_t MagnitudeOf(float value) { return BitsOf(value) & 0x7fffffffu; }

}  // namespace syncline::SYNCLINE_GPU
