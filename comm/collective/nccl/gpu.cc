#include "comm/collective/nccl/gpu.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline::collective {
namespace {

// Constants of cuda.h, which need not be installed.
constexpr int kNotReady = 600;              // CUDA_ERROR_NOT_READY
constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kEventWithoutTime = 2;   // CU_EVENT_DISABLE_TIMING

absl::Status Check(const GpuDriver& driver, int error, absl::string_view what) {
  if (error == 0) return absl::OkStatus();
  const char* text = nullptr;
  if (driver.error_string != nullptr) driver.error_string(error, &text);
  return WithFailure(
      absl::UnavailableError(absl::StrCat("a GPU failed (", what,
                                          "): ", text != nullptr ? text : "unknown error",
                                          " (", error, ")")),
      Failure::kDeviceFailed);
}

template <typename Function>
void Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

absl::StatusOr<GpuDriver> OpenDriver(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  }
  GpuDriver driver;
  Find(library, "cuInit", driver.init);
  Find(library, "cuDeviceGet", driver.device_get);
  // The second version returns the UUID of a part of a device, if the process has only a
  // part.
  Find(library, "cuDeviceGetUuid_v2", driver.device_get_uuid);
  if (driver.device_get_uuid == nullptr) {
    Find(library, "cuDeviceGetUuid", driver.device_get_uuid);
  }
  Find(library, "cuDevicePrimaryCtxRetain", driver.context_retain);
  Find(library, "cuDevicePrimaryCtxRelease_v2", driver.context_release);
  Find(library, "cuCtxGetCurrent", driver.context_get_current);
  Find(library, "cuCtxSetCurrent", driver.context_set_current);
  Find(library, "cuStreamCreate", driver.stream_create);
  Find(library, "cuStreamDestroy_v2", driver.stream_destroy);
  Find(library, "cuStreamWaitEvent", driver.stream_wait_event);
  Find(library, "cuEventCreate", driver.event_create);
  Find(library, "cuEventDestroy_v2", driver.event_destroy);
  Find(library, "cuEventRecord", driver.event_record);
  Find(library, "cuEventQuery", driver.event_query);
  Find(library, "cuMemAlloc_v2", driver.memory_allocate);
  Find(library, "cuMemFree_v2", driver.memory_free);
  Find(library, "cuGetErrorString", driver.error_string);
  const bool whole =
      driver.init != nullptr && driver.device_get != nullptr &&
      driver.device_get_uuid != nullptr && driver.context_retain != nullptr &&
      driver.context_release != nullptr && driver.context_get_current != nullptr &&
      driver.context_set_current != nullptr && driver.stream_create != nullptr &&
      driver.stream_destroy != nullptr && driver.stream_wait_event != nullptr &&
      driver.event_create != nullptr && driver.event_destroy != nullptr &&
      driver.event_record != nullptr && driver.event_query != nullptr &&
      driver.memory_allocate != nullptr && driver.memory_free != nullptr;
  if (whole) return driver;
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is not an NVIDIA driver, or older than CUDA 11"));
}

}  // namespace

GpuEvent::~GpuEvent() {
  if (event_ != nullptr) driver_->event_destroy(event_);
}

absl::Status GpuEvent::Record(void* stream) {
  return Check(*driver_, driver_->event_record(event_, stream), "cuEventRecord");
}

absl::Status GpuEvent::HoldUp(void* stream) const {
  return Check(*driver_, driver_->stream_wait_event(stream, event_, 0),
               "cuStreamWaitEvent");
}

absl::StatusOr<bool> GpuEvent::HasPassed() const {
  const int error = driver_->event_query(event_);
  if (error == kNotReady) return false;
  SYNCLINE_RETURN_IF_ERROR(Check(*driver_, error, "cuEventQuery"));
  return true;
}

std::string Gpu::Driver() {
  const char* const given = std::getenv("SYNCLINE_CUDA_DRIVER");
  return given != nullptr && *given != 0 ? given : "libcuda.so.1";
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const std::string& driver, int ordinal) {
  SYNCLINE_ASSIGN_OR_RETURN(const GpuDriver found, OpenDriver(driver));
  std::unique_ptr<Gpu> gpu(new Gpu(found));
  absl::Status status = Check(found, found.init(0), "cuInit");
  if (status.ok()) {
    status = Check(found, found.device_get(&gpu->device_, ordinal), "cuDeviceGet");
  }
  if (status.ok()) {
    status =
        Check(found, found.device_get_uuid(&gpu->uuid_, gpu->device_), "cuDeviceGetUuid");
  }
  if (!status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device ", ordinal, ": ", status.message()));
  }
  SYNCLINE_RETURN_IF_ERROR(Check(found,
                                 found.context_retain(&gpu->context_, gpu->device_),
                                 "cuDevicePrimaryCtxRetain"));
  return gpu;
}

Gpu::~Gpu() {
  if (context_ != nullptr) driver_.context_release(device_);
}

Gpu::Current::Current(const Gpu& gpu) : gpu_(gpu) {
  gpu_.driver_.context_get_current(&before_);
  if (before_ != gpu_.context_) gpu_.driver_.context_set_current(gpu_.context_);
}

Gpu::Current::~Current() {
  if (before_ != gpu_.context_) gpu_.driver_.context_set_current(before_);
}

absl::StatusOr<void*> Gpu::MakeStream() {
  void* stream = nullptr;
  SYNCLINE_RETURN_IF_ERROR(Check(
      driver_, driver_.stream_create(&stream, kNonBlockingStream), "cuStreamCreate"));
  return stream;
}

void Gpu::DestroyStream(void* stream) {
  if (stream != nullptr) driver_.stream_destroy(stream);
}

absl::StatusOr<GpuEvent> Gpu::MakeEvent() {
  void* event = nullptr;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_, driver_.event_create(&event, kEventWithoutTime), "cuEventCreate"));
  return GpuEvent(driver_, event);
}

absl::StatusOr<void*> Gpu::Allocate(size_t bytes) {
  void* memory = nullptr;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_, driver_.memory_allocate(&memory, bytes), "cuMemAlloc"));
  return memory;
}

void Gpu::Free(void* memory) {
  if (memory != nullptr) driver_.memory_free(memory);
}

}  // namespace syncline::collective
