// The parts of a CUDA device that a group over NCCL needs: its context, a stream, and
// events. It uses the driver (libcuda.so.1), which is opened at run time. The driver
// shares contexts and streams with the program's CUDA runtime of any version.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu,
//                             Gpu::Open(Gpu::Driver(), 0));
//   const Gpu::Current current(*gpu);
//   SYNCLINE_ASSIGN_OR_RETURN(GpuEvent event, gpu->MakeEvent());
//   SYNCLINE_RETURN_IF_ERROR(event.Record(programs_stream));
//
// Thread-safe. Calls about streams and events require the device to be the thread's
// current one. CUDA errors are Unavailable (Failure::kDeviceFailed).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::collective {

// Functions of the driver, as declared in cuda.h. All return 0 on success.
struct GpuDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_uuid)(std::array<std::byte, 16>* uuid, int device) = nullptr;
  int (*context_retain)(void** context, int device) = nullptr;
  int (*context_release)(int device) = nullptr;
  int (*context_get_current)(void** context) = nullptr;
  int (*context_set_current)(void* context) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_wait_event)(void* stream, void* event, unsigned flags) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*memory_allocate)(void** memory, size_t bytes) = nullptr;
  int (*memory_free)(void* memory) = nullptr;
  int (*error_string)(int error, const char** text) = nullptr;
};

// A place in a stream. Empty unless a Gpu made it, which must outlive it.
class GpuEvent {
 public:
  GpuEvent() = default;
  GpuEvent(const GpuDriver& driver, void* event) : driver_(&driver), event_(event) {}
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept
      : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
  GpuEvent& operator=(GpuEvent&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(event_, other.event_);
    return *this;
  }

  // Marks the place after all work enqueued on the stream so far. Null: the default
  // stream.
  absl::Status Record(void* stream);
  // Makes work that is enqueued on the stream from now on wait for the event.
  absl::Status HoldUp(void* stream) const;
  // Whether the device has reached the event.
  absl::StatusOr<bool> HasPassed() const;

 private:
  const GpuDriver* driver_ = nullptr;
  void* event_ = nullptr;
};

class Gpu {
 public:
  // Returns $SYNCLINE_CUDA_DRIVER if it is set, otherwise libcuda.so.1.
  static std::string Driver();
  // Opens device number `ordinal` of those that this process sees. Creates its primary
  // context if the program has none yet. Fails with FailedPrecondition if there is no
  // driver or not that many devices.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& driver,
                                                   int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Equal in all processes that see the device, and different from all devices of any
  // host.
  const std::array<std::byte, 16>& uuid() const { return uuid_; }

  // Makes the device the thread's current one while this object exists.
  class Current {
   public:
    explicit Current(const Gpu& gpu);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Gpu& gpu_;
    void* before_ = nullptr;
  };

  // Creates a stream that is independent of the default stream.
  absl::StatusOr<void*> MakeStream();
  void DestroyStream(void* stream);
  absl::StatusOr<GpuEvent> MakeEvent();
  absl::StatusOr<void*> Allocate(size_t bytes);
  void Free(void* memory);

 private:
  explicit Gpu(const GpuDriver& driver) : driver_(driver) {}

  const GpuDriver driver_;
  int device_ = 0;
  void* context_ = nullptr;
  std::array<std::byte, 16> uuid_ = {};
};

}  // namespace syncline::collective
