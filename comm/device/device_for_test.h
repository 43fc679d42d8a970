// The emulated GPU used as a device, and arrays in its memory, which the host cannot
// access. Tests that use it are built with SYNCLINE_TEST_CUDA_FAKE (CMake's
// syncline_emulated_gpu).
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <span>
#include <vector>

#include "comm/base/check.h"
#include "comm/device/device.h"

namespace syncline {

// Returns device number `ordinal` of two.
inline Device& EmulatedGpu(int32_t ordinal = 0) {
  SYNCLINE_CHECK(setenv("SYNCLINE_CUDA_MODULE", SYNCLINE_TEST_CUDA_FAKE, 1) == 0);
  const absl::StatusOr<Device*> device = Device::Open(ordinal);
  SYNCLINE_CHECK(device.ok());
  return **device;
}

// While this object exists, calls of the emulated GPUs fail from the n-th one on. A
// Device that saw an error keeps it, so use a separate one, Device(EmulatedGpu().calls(),
// 0).
class FailingGpu {
 public:
  explicit FailingGpu(int n = 1) { FailAfter(n); }
  ~FailingGpu() { FailAfter(0); }
  FailingGpu(const FailingGpu&) = delete;
  FailingGpu& operator=(const FailingGpu&) = delete;

 private:
  static void FailAfter(int n) {
    void* const module = dlopen(SYNCLINE_TEST_CUDA_FAKE, RTLD_NOW | RTLD_NOLOAD);
    SYNCLINE_CHECK(module != nullptr);
    auto* const fail =
        reinterpret_cast<void (*)(int)>(dlsym(module, "SynclineCudaFakeFailAfter"));
    SYNCLINE_CHECK(fail != nullptr);
    fail(n);
    dlclose(module);
  }
};

// An array in the memory of a GPU.
template <typename T>
class DeviceVector {
 public:
  DeviceVector(Device& device, std::span<const T> values)
      : device_(device), elements_(values.size()), buffer_(device, kPlace) {
    SYNCLINE_CHECK(buffer_.Reserve(values.size_bytes()));
    Set(values);
  }

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  void Set(std::span<const T> values) { device_.Write(std::as_bytes(values), data()); }
  std::vector<T> Get() const {
    std::vector<T> values(elements_);
    device_.Read(data(), std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  static constexpr DeviceBuffer::Place kPlace = DeviceBuffer::Place::kDevice;

  Device& device_;
  const size_t elements_;
  DeviceBuffer buffer_;
};

}  // namespace syncline
