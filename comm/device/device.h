// A GPU of this process, through the CUDA module (comm/base/cuda), which is opened at run
// time.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Device* const device, Device::Open(0));
//   device->Read(gradient, bytes);
//   SYNCLINE_RETURN_IF_ERROR(device->status());
//
// CUDA errors are permanent. After the first one, calls do nothing, reads return zeros,
// and status() describes the error.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/buffer.h"
#include "comm/device/device_calls.h"

namespace syncline {

class DeviceQueue;

class Device {
 public:
  // Returns device number `ordinal` of those that this process sees, through the module
  // that ProbeCuda finds. Each device is opened once and lives as long as the process.
  // Fails with Unavailable, and says what to do, if there is no module, driver or device,
  // or if kernels do not run on it. Fails with InvalidArgument if there are fewer
  // devices.
  static absl::StatusOr<Device*> Open(int32_t ordinal);

  // REQUIRES: the calls belong to a module that stays open.
  Device(const DeviceCalls& calls, int32_t ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int32_t ordinal() const { return ordinal_; }
  const DeviceCalls& calls() const { return calls_; }

  // Copy `to.size()` or `from.size()` bytes, and return when the copy is done.
  void Read(const void* from, MutableByteView to) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(ByteView from, void* to) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes zeros, and returns when that is done.
  void Clear(void* to, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Unavailable (Failure::kDeviceFailed) with the first error of any call, and what the
  // call was for.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(status_mutex_);
  bool ok() const ABSL_LOCKS_EXCLUDED(status_mutex_);
  // Records `error` unless it is 0. Returns whether it is 0.
  bool Succeeded(int error, absl::string_view what) ABSL_LOCKS_EXCLUDED(status_mutex_);

 private:
  const DeviceCalls calls_;
  const int32_t ordinal_;
  absl::Mutex mutex_;
  mutable absl::Mutex status_mutex_;
  absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  const std::unique_ptr<DeviceQueue> queue_ ABSL_PT_GUARDED_BY(mutex_);
};

// Memory of a device, or page-locked memory of the host, which kernels can also access.
// Empty after an error.
//
// Thread safety: none.
class DeviceBuffer {
 public:
  enum class Place { kDevice, kHost };  // kHost is page-locked

  DeviceBuffer(Device& device, Place place) : device_(device), place_(place) {}
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // Makes room for at least `bytes`, aligned to 256. If the buffer must grow, its content
  // is lost. Returns false after an error.
  bool Reserve(size_t bytes);
  // Does the same, except that running out of memory is not an error of the device. In
  // that case it returns false and the buffer is empty.
  bool TryReserve(size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void Free();
  // Returns the module's error code, 0 on success.
  int Allocate(size_t bytes);

  Device& device_;
  const Place place_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace syncline
