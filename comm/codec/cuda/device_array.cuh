// Device memory for the programs that check and measure kernels. They use no test
// library, because they must also run on machines that have only CUDA.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace syncline {

// Exits on an error of CUDA, since these programs cannot continue.
inline void Must(int error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what,
              cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    Must(cudaMalloc(&data_, size == 0 ? 1 : size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Must(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyDefault), "copy");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  // Waits for all enqueued work.
  std::vector<T> Read(size_t count) {
    Must(cudaDeviceSynchronize(), "kernels");
    std::vector<T> values(count);
    Must(cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDefault), "copy");
    return values;
  }
  std::vector<T> Read() { return Read(size_); }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace syncline
