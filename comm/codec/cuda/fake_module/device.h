// Two devices that are the emulated GPU: their memory, streams and failures, which the
// functions that the fake module exports are made of.
//
// Memory of a device is memory of the host at another address, with a bit that makes the
// host fault. What a stream has to do is done when somebody waits for it, by that thread:
// who reads a result without waiting reads what was there before.
//
// Thread-safe: kernels of several streams run at once, each in a thread that waits.
// Locks are std::mutex, which ThreadSanitizer sees in a library that was opened late, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace syncline::fake_module {

inline constexpr int32_t kDevices = 2;
inline constexpr size_t kDeviceBytes = size_t{4} << 30;  // that one can allocate

// Of cudaError_t.
enum Error : int {
  kNoError = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidHandle = 400,  // no stream, or one of another device
  kIllegalAddress = 700,
  kLaunchFailure = 719,
};

// x86-64 has no such addresses: who uses one gets SIGSEGV.
inline constexpr uintptr_t kDeviceBit = uintptr_t{1} << 62;

// Where the bytes are, of any pointer.
template <typename T>
T* OnHost(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) & ~kDeviceBit);
}

enum class MemoryKind { kDevice, kPageLocked };

// Whether kernels may use it: memory of a device, page-locked memory, or null.
bool KernelsReach(const void* pointer);

// They return errors. What is wrong with a call is no failure of the device.
int Allocate(int32_t device, size_t bytes, MemoryKind kind, void** memory);
int Free(int32_t device, void* memory, MemoryKind kind);
size_t AllocatedBytes();

// The n-th call of Count from now fails, and from then on the device is broken; 0: it
// works again.
void FailAfter(int n);
int Count();
// Also broken devices do nothing any more.
int Health();
void Break(Error error);

class WorkQueue {
 public:
  using Work = std::function<int()>;  // returns an error

  explicit WorkQueue(int32_t device) : device_(device) {}

  int32_t device() const { return device_; }
  void* handle() { return &handle_; }

  void Enqueue(Work work);
  // Does all of it; the first error breaks the device.
  void Run();

 private:
  const int32_t device_;
  char handle_ = 0;  // its address is what kernels take
  std::mutex mutex_;
  std::vector<Work> work_;
};

void* CreateQueue(int32_t device);
void DestroyQueue(const void* queue);
// Null unless it is one of the device. -1 is the current device, which is always 0.
std::shared_ptr<WorkQueue> QueueAt(int32_t device, const void* queue);
std::shared_ptr<WorkQueue> QueueOfHandle(int32_t device, const void* handle);

inline bool Exists(int32_t device) { return device >= -1 && device < kDevices; }

}  // namespace syncline::fake_module
