// A GPU of this process, by way of the CUDA module (comm/base/cuda), which is opened at
// run time.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Device* const device, Device::Open(0));
//   device->Read(gradient, bytes);
//   SYNCLINE_RETURN_IF_ERROR(device->status());
//
// Errors of CUDA do not pass. After the first one calls do nothing, what is read is zeros,
// and status() says what happened.
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
  // Number `ordinal` of those that this process sees, from the module that ProbeCuda
  // finds. Opened once; lives as long as the process. Unavailable: no module, driver or
  // device, or one on which its kernels do not run, and the message says what to do.
  // InvalidArgument: there are fewer devices.
  static absl::StatusOr<Device*> Open(int32_t ordinal);

  // REQUIRES: calls of a module that stays open.
  Device(const DeviceCalls& calls, int32_t ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int32_t ordinal() const { return ordinal_; }
  const DeviceCalls& calls() const { return calls_; }

  // Copies, and returns once that is done.
  void Read(const void* from, MutableByteView to) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(ByteView from, void* to) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes zeros, likewise.
  void Clear(void* to, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Unavailable (Failure::kDeviceFailed) with the first error that a call came to, and
  // what it was about.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(status_mutex_);
  bool ok() const ABSL_LOCKS_EXCLUDED(status_mutex_);
  // Notes an error unless `error` is 0; whether it is 0.
  bool Succeeded(int error, absl::string_view what) ABSL_LOCKS_EXCLUDED(status_mutex_);

 private:
  const DeviceCalls calls_;
  const int32_t ordinal_;
  absl::Mutex mutex_;
  mutable absl::Mutex status_mutex_;
  absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  const std::unique_ptr<DeviceQueue> queue_ ABSL_PT_GUARDED_BY(mutex_);
};

// Memory of a device, or of the host where kernels reach it, too. Empty after an error.
//
// Thread safety: none.
class DeviceBuffer {
 public:
  enum class Place { kDevice, kHost };  // the latter page-locked

  DeviceBuffer(Device& device, Place place) : device_(device), place_(place) {}
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // At least so many bytes, aligned to 256; what was there before is lost if there were
  // fewer. False after an error.
  bool Reserve(size_t bytes);
  // Likewise, but that there is no memory is no error of the device: then false, and
  // empty.
  bool TryReserve(size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void Free();
  // What the module said.
  int Allocate(size_t bytes);

  Device& device_;
  const Place place_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace syncline
