// Compares the cast kernels with the scalar rule of comm/base/dtype.h, bit for bit. It
// uses no test library, because it must also run on machines that have only CUDA. Exits
// with 77 (skipped) if there is no device.
#include <cstdio>
#include <random>
#include <vector>

#include "comm/base/dtype.h"
#include "comm/codec/cuda/cast.h"
#include "comm/codec/cuda/device_present.h"

namespace {

constexpr uint64_t kSeed = 20240607;
constexpr int32_t kDevice = 0;

struct DeviceArray {
  explicit DeviceArray(size_t bytes) {
    error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void* data = nullptr;
  cudaError_t error;
};

// Returns every special upper half with lower halves around the tie, then random bits up
// to `n` values.
std::vector<float> Inputs(size_t n) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000u && values.size() < n; ++upper) {
    for (uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  std::mt19937 random(kSeed);
  while (values.size() < n)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  values.resize(n);
  return values;
}

bool Check(size_t n, cudaStream_t stream) {
  const std::vector<float> values = Inputs(n);
  DeviceArray wide(n * sizeof(float));
  DeviceArray narrow(n * sizeof(uint16_t));
  DeviceArray back(n * sizeof(float));
  std::vector<uint16_t> rounded(n);
  std::vector<float> widened(n);
  auto copy = [stream](void* to, const void* from, size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  };
  const int errors[] = {
      wide.error,
      narrow.error,
      back.error,
      copy(wide.data, values.data(), n * sizeof(float)),
      SynclineCudaBf16FromFloat(kDevice, static_cast<float*>(wide.data),
                                static_cast<uint16_t*>(narrow.data), n, stream),
      SynclineCudaFloatFromBf16(kDevice, static_cast<uint16_t*>(narrow.data),
                                static_cast<float*>(back.data), n, stream),
      copy(rounded.data(), narrow.data, n * sizeof(uint16_t)),
      copy(widened.data(), back.data, n * sizeof(float)),
      cudaStreamSynchronize(stream)};
  for (const int error : errors) {
    if (error == cudaSuccess) continue;
    std::printf("n=%zu: %s\n", n, cudaGetErrorString(static_cast<cudaError_t>(error)));
    return false;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint16_t expected = syncline::Bf16FromFloat(values[i]);
    const uint32_t expected_wide =
        std::bit_cast<uint32_t>(syncline::FloatFromBf16(expected));
    if (rounded[i] == expected && std::bit_cast<uint32_t>(widened[i]) == expected_wide)
      continue;
    std::printf("n=%zu, element %zu, bits %08x: got %04x, expected %04x\n", n, i,
                std::bit_cast<uint32_t>(values[i]), rounded[i], expected);
    return false;
  }
  return true;
}

}  // namespace

int main() {
  syncline::gpu::RequireDevice();
  cudaStream_t stream;
  if (cudaStreamCreate(&stream) != cudaSuccess) return 1;
  bool good = true;
  // Sizes around a warp, a block and a tile, and one with more elements than the largest
  // grid has threads.
  for (const size_t n :
       {0u, 1u, 31u, 32u, 33u, 255u, 256u, 257u, 65535u, 65536u, 65537u, 3000000u}) {
    good = Check(n, stream) && good;
  }
  cudaStreamDestroy(stream);
  std::printf("%s (seed %llu)\n", good ? "ok" : "FAILED",
              static_cast<unsigned long long>(kSeed));
  return good ? 0 : 1;
}
