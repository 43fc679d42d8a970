// Two devices that are the emulated GPU: the memory, streams and failures from which the
// exported functions of the fake module are built.
//
// Memory of a device is host memory at another address, with a bit set that makes the
// host fault. Work of a stream runs when a thread waits for it, on that thread. So a
// program that reads a result without waiting finds the old content.
//
// Thread-safe: kernels of several streams run at the same time, each in a thread that
// waits. Locks are std::mutex, because ThreadSanitizer sees it even in a library that was
// opened late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace syncline::fake_module {

inline constexpr int32_t kDevices = 2;
inline constexpr size_t kDeviceBytes = size_t{4} << 30;  // how much a device can allocate

// Values of cudaError_t.
enum Error : int {
  kNoError = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidHandle = 400,  // not a stream, or one of another device
  kIllegalAddress = 700,
  kLaunchFailure = 719,
};

// x86-64 has no such addresses, so access ends with SIGSEGV.
inline constexpr uintptr_t kDeviceBit = uintptr_t{1} << 62;

// Returns where the bytes of any pointer really are.
template <typename T>
T* OnHost(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) & ~kDeviceBit);
}

enum class MemoryKind { kDevice, kPageLocked };

// Whether kernels may use it: memory of a device, page-locked memory, or null.
bool KernelsReach(const void* pointer);

// These return errors. An invalid call is not a failure of the device.
int Allocate(int32_t device, size_t bytes, MemoryKind kind, void** memory);
int Free(int32_t device, void* memory, MemoryKind kind);
size_t AllocatedBytes();

// The n-th call of Count from now fails, and from then on the device is broken. 0: it
// works again.
void FailAfter(int n);
int Count();
// Returns the error of a broken device, without counting.
int Health();
void Break(Error error);

class WorkQueue {
 public:
  using Work = std::function<int()>;  // returns an error

  explicit WorkQueue(int32_t device) : device_(device) {}

  int32_t device() const { return device_; }
  void* handle() { return &handle_; }

  void Enqueue(Work work);
  // Does all the work; the first error breaks the device.
  void Run();

 private:
  const int32_t device_;
  char handle_ = 0;  // its address is the handle for kernels
  std::mutex mutex_;
  std::vector<Work> work_;
};

void* CreateQueue(int32_t device);
void DestroyQueue(const void* queue);
// Returns null unless `queue` is one of the device. -1 is the current device, which is
// always 0.
std::shared_ptr<WorkQueue> QueueAt(int32_t device, const void* queue);
std::shared_ptr<WorkQueue> QueueOfHandle(int32_t device, const void* handle);

inline bool Exists(int32_t device) { return device >= -1 && device < kDevices; }

}  // namespace syncline::fake_module
