#include "comm/codec/cuda/fake_module/device.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace syncline::fake_module {
namespace {

constexpr size_t kAlignment = 256;
// Neither zeros nor small numbers: page-locked memory has any content.
constexpr int kGarbage = 0xa5;

struct Allocation {
  size_t bytes = 0;
  int32_t device = 0;
  MemoryKind kind = MemoryKind::kDevice;
};

int FailsAtFirst() {
  const char* const given = std::getenv("SYNCLINE_FAKE_CUDA_FAILS");
  return given == nullptr ? 0 : std::atoi(given);
}

struct Devices {
  std::mutex mutex;
  // It guards all fields below.
  std::map<const void*, std::shared_ptr<WorkQueue>> queues = {};
  std::map<uintptr_t, Allocation> allocations = {};  // by host address
  int calls_until_failure = FailsAtFirst();          // 0: none fails
  Error broken = kNoError;
};

// Never destroyed, because threads of the process may still use it at exit.
Devices& All() {
  static Devices& devices = *new Devices;
  return devices;
}

int32_t Ordinal(int32_t device) { return device == -1 ? 0 : device; }

// Runs all work that may still use memory that is about to be freed.
void RunAllQueues() {
  std::vector<std::shared_ptr<WorkQueue>> queues;
  {
    const std::lock_guard lock(All().mutex);
    for (const auto& [address, queue] : All().queues) queues.push_back(queue);
  }
  for (const auto& queue : queues) queue->Run();
}

size_t AllocatedOn(const Devices& devices, int32_t device) {
  size_t bytes = 0;
  for (const auto& [address, allocation] : devices.allocations) {
    const bool counts =
        allocation.kind == MemoryKind::kDevice && allocation.device == device;
    bytes += counts ? allocation.bytes : 0;
  }
  return bytes;
}

}  // namespace

bool KernelsReach(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address == 0 || (address & kDeviceBit) != 0) return true;
  const std::lock_guard lock(All().mutex);
  auto after = All().allocations.upper_bound(address);
  if (after == All().allocations.begin()) return false;
  const auto& [begin, allocation] = *--after;
  return allocation.kind == MemoryKind::kPageLocked && address - begin < allocation.bytes;
}

int Allocate(int32_t device, size_t bytes, MemoryKind kind, void** memory) {
  if (memory == nullptr) return kInvalidValue;
  *memory = nullptr;
  if (!Exists(device)) return kInvalidDevice;
  if (bytes == 0) return kNoError;
  const std::lock_guard lock(All().mutex);
  if (All().broken != kNoError) return All().broken;
  const size_t used =
      kind == MemoryKind::kDevice ? AllocatedOn(All(), Ordinal(device)) : 0;
  if (bytes > kDeviceBytes - used) return kOutOfMemory;
  const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const made = std::aligned_alloc(kAlignment, whole);
  if (made == nullptr) return kOutOfMemory;
  std::memset(made, kind == MemoryKind::kDevice ? 0 : kGarbage, whole);
  const auto address = reinterpret_cast<uintptr_t>(made);
  All().allocations[address] = {.bytes = bytes, .device = Ordinal(device), .kind = kind};
  *memory =
      kind == MemoryKind::kDevice ? reinterpret_cast<void*>(address | kDeviceBit) : made;
  return kNoError;
}

int Free(int32_t device, void* memory, MemoryKind kind) {
  if (memory == nullptr) return kNoError;
  if (!Exists(device)) return kInvalidDevice;
  RunAllQueues();
  const std::lock_guard lock(All().mutex);
  const auto found = All().allocations.find(reinterpret_cast<uintptr_t>(OnHost(memory)));
  const bool is_there = found != All().allocations.end() && found->second.kind == kind &&
                        found->second.device == Ordinal(device);
  if (!is_there) return kInvalidValue;
  All().allocations.erase(found);
  std::free(OnHost(memory));
  return kNoError;
}

size_t AllocatedBytes() {
  const std::lock_guard lock(All().mutex);
  size_t bytes = 0;
  for (const auto& [address, allocation] : All().allocations) bytes += allocation.bytes;
  return bytes;
}

void FailAfter(int n) {
  const std::lock_guard lock(All().mutex);
  All().calls_until_failure = n;
  All().broken = kNoError;
}

int Count() {
  const std::lock_guard lock(All().mutex);
  if (All().broken == kNoError && All().calls_until_failure > 0 &&
      --All().calls_until_failure == 0) {
    All().broken = kLaunchFailure;
  }
  return All().broken;
}

int Health() {
  const std::lock_guard lock(All().mutex);
  return All().broken;
}

void Break(Error error) {
  const std::lock_guard lock(All().mutex);
  if (All().broken == kNoError) All().broken = error;
}

void WorkQueue::Enqueue(Work work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
}

void WorkQueue::Run() {
  const std::lock_guard lock(mutex_);
  for (const Work& work : std::exchange(work_, {})) {
    if (Health() != kNoError) return;
    const int error = work();
    if (error != kNoError) Break(static_cast<Error>(error));
  }
}

void* CreateQueue(int32_t device) {
  auto queue = std::make_shared<WorkQueue>(Ordinal(device));
  void* const address = queue.get();
  const std::lock_guard lock(All().mutex);
  All().queues[address] = std::move(queue);
  return address;
}

void DestroyQueue(const void* queue) {
  const std::lock_guard lock(All().mutex);
  All().queues.erase(queue);
}

std::shared_ptr<WorkQueue> QueueAt(int32_t device, const void* queue) {
  const std::lock_guard lock(All().mutex);
  const auto found = All().queues.find(queue);
  const bool is_there =
      found != All().queues.end() && found->second->device() == Ordinal(device);
  return is_there ? found->second : nullptr;
}

std::shared_ptr<WorkQueue> QueueOfHandle(int32_t device, const void* handle) {
  const std::lock_guard lock(All().mutex);
  for (const auto& [address, queue] : All().queues) {
    if (queue->handle() == handle && queue->device() == Ordinal(device)) return queue;
  }
  return nullptr;
}

}  // namespace syncline::fake_module
