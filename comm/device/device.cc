#include "comm/device/device.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/cuda/probe.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/device/device_queue.h"

namespace syncline {
namespace {

// All devices of this process. They are never freed, because any thread may still use
// them at exit.
struct Devices {
  absl::Mutex mutex;
  std::map<int32_t, Device*> open ABSL_GUARDED_BY(mutex);
};

Devices& AllDevices() {
  static auto* const devices = new Devices;
  return *devices;
}

// Checks that a kernel runs, because the module may have none for an old device.
absl::Status Try(Device& device) {
  constexpr float kOne = 1;
  DeviceBuffer value(device, DeviceBuffer::Place::kDevice);
  if (!value.Reserve(sizeof(kOne))) return device.status();
  device.Write(std::as_bytes(std::span(&kOne, 1)), value.data());
  DeviceQueue queue(device);
  queue.ToBf16(reinterpret_cast<const float*>(value.data()), 1);
  return device.status();
}

absl::StatusOr<Device*> Make(int32_t ordinal) {
  const CudaProbe probe = ProbeCuda();
  if (probe.device_count == 0) return absl::UnavailableError(probe.message);
  if (ordinal < 0 || ordinal >= probe.device_count) {
    return absl::InvalidArgumentError(absl::StrCat("there is no CUDA device ", ordinal,
                                                   ": this process sees ",
                                                   probe.device_count, ", from 0 on"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const DeviceCalls calls, FindDeviceCalls(probe.module));
  auto device = std::make_unique<Device>(calls, ordinal);
  const absl::Status works = Try(*device);
  if (works.ok()) return device.release();
  return absl::UnavailableError(absl::StrCat(std::string(works.message()),
                                             "; the module's kernels are for ",
                                             probe.architectures, " and newer"));
}

}  // namespace

absl::StatusOr<Device*> Device::Open(int32_t ordinal) {
  Devices& devices = AllDevices();
  absl::MutexLock lock(&devices.mutex);
  const auto found = devices.open.find(ordinal);
  if (found != devices.open.end()) return found->second;
  SYNCLINE_ASSIGN_OR_RETURN(Device* const device, Make(ordinal));
  devices.open[ordinal] = device;
  return device;
}

Device::Device(const DeviceCalls& calls, int32_t ordinal)
    : calls_(calls), ordinal_(ordinal), queue_(std::make_unique<DeviceQueue>(*this)) {}

Device::~Device() = default;

void Device::Read(const void* from, MutableByteView to) {
  absl::MutexLock lock(&mutex_);
  queue_->Read(from, to);
}

void Device::Write(ByteView from, void* to) {
  absl::MutexLock lock(&mutex_);
  queue_->Write(from, to);
}

void Device::Clear(void* to, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  queue_->Clear(to, bytes);
}

absl::Status Device::status() const {
  absl::MutexLock lock(&status_mutex_);
  return status_;
}

bool Device::ok() const {
  absl::MutexLock lock(&status_mutex_);
  return status_.ok();
}

bool Device::Succeeded(int error, absl::string_view what) {
  if (error == 0) return true;
  const char* const meaning = calls_.error_string(error);
  absl::MutexLock lock(&status_mutex_);
  if (status_.ok()) {
    status_ = WithFailure(
        absl::UnavailableError(absl::StrCat("CUDA device ", ordinal_, ": ", what, ": ",
                                            meaning, " (error ", error, ")")),
        Failure::kDeviceFailed);
  }
  return false;
}

DeviceBuffer::~DeviceBuffer() { Free(); }

void DeviceBuffer::Free() {
  if (data_ == nullptr) return;
  const DeviceCalls& calls = device_.calls();
  const int error = place_ == Place::kDevice ? calls.free(device_.ordinal(), data_)
                                             : calls.free_host(device_.ordinal(), data_);
  device_.Succeeded(error, "freeing memory");
  data_ = nullptr;
  bytes_ = 0;
}

int DeviceBuffer::Allocate(size_t bytes) {
  Free();
  const DeviceCalls& calls = device_.calls();
  const int error = place_ == Place::kDevice
                        ? calls.allocate(device_.ordinal(), bytes, &data_)
                        : calls.allocate_host(device_.ordinal(), bytes, &data_);
  if (error == 0) {
    bytes_ = bytes;
  } else {
    data_ = nullptr;
  }
  return error;
}

bool DeviceBuffer::Reserve(size_t bytes) {
  if (bytes <= bytes_) return true;
  const char* const what =
      place_ == Place::kDevice ? " bytes of its memory" : " bytes of page-locked memory";
  return device_.Succeeded(Allocate(bytes), absl::StrCat("allocating ", bytes, what));
}

bool DeviceBuffer::TryReserve(size_t bytes) {
  constexpr int kNoMemory = 2;  // cudaErrorMemoryAllocation
  if (bytes <= bytes_) return true;
  const int error = Allocate(bytes);
  return error != kNoMemory && device_.Succeeded(error, "allocating memory");
}

}  // namespace syncline
