// Implements memory.h, module_abi.h and fake_module.h of the fake module.
#include "comm/codec/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "comm/base/cuda/module_abi.h"
#include "comm/codec/cuda/fake_module/device.h"
#include "comm/codec/cuda/fake_module/fake_module.h"

namespace fake = syncline::fake_module;
using fake::MemoryKind;
using fake::OnHost;

namespace {

constexpr int32_t kCudaVersion = 13000;

// Copies of ordinary host memory run at once, as in CUDA.
int Move(fake::WorkQueue& queue, void* to, const void* from, size_t bytes) {
  const bool is_async = fake::KernelsReach(to) && fake::KernelsReach(from);
  queue.Enqueue([to = OnHost(to), from = OnHost(from), bytes] {
    std::memcpy(to, from, bytes);
    return fake::kNoError;
  });
  if (!is_async) queue.Run();
  return fake::Health();
}

}  // namespace

void SynclineCudaDescribe(SynclineCudaInfo* info) {
  const SynclineCudaInfo mine = {.abi = kSynclineCudaAbi,
                                 .struct_bytes = sizeof(SynclineCudaInfo),
                                 .runtime_version = kCudaVersion,
                                 .driver_version = kCudaVersion,
                                 .device_count = fake::kDevices,
                                 .architectures = "emulated",
                                 .message = ""};
  std::memcpy(info, &mine, std::min<size_t>(info->struct_bytes, sizeof(mine)));
}

void SynclineCudaFakeFailAfter(int n) { fake::FailAfter(n); }
size_t SynclineCudaFakeAllocatedBytes() { return fake::AllocatedBytes(); }

int SynclineCudaStreamCreate(int32_t device, void** stream) {
  if (stream == nullptr) return fake::kInvalidValue;
  *stream = nullptr;
  if (!fake::Exists(device)) return fake::kInvalidDevice;
  const int health = fake::Health();
  if (health == fake::kNoError) *stream = fake::CreateQueue(device);
  return health;
}

int SynclineCudaStreamDestroy(int32_t device, void* stream) {
  if (stream == nullptr) return fake::kNoError;
  if (!fake::Exists(device)) return fake::kInvalidDevice;
  const auto queue = fake::QueueAt(device, stream);
  if (queue == nullptr) return fake::kInvalidHandle;
  queue->Run();
  fake::DestroyQueue(stream);
  return fake::kNoError;
}

int SynclineCudaUseDevice(int32_t device) {
  return device >= 0 && fake::Exists(device) ? fake::kNoError : fake::kInvalidDevice;
}

int SynclineCudaStreamWait(int32_t device, void* stream) {
  if (stream == nullptr) return fake::kInvalidValue;
  if (!fake::Exists(device)) return fake::kInvalidDevice;
  const auto queue = fake::QueueAt(device, stream);
  if (queue == nullptr) return fake::kInvalidHandle;
  const int error = fake::Count();
  if (error != fake::kNoError) return error;
  queue->Run();
  return fake::Health();
}

void* SynclineCudaStreamHandle(void* stream) {
  return stream == nullptr ? nullptr : static_cast<fake::WorkQueue*>(stream)->handle();
}

int SynclineCudaAllocate(int32_t device, size_t bytes, void** memory) {
  return fake::Allocate(device, bytes, MemoryKind::kDevice, memory);
}

int SynclineCudaFree(int32_t device, void* memory) {
  return fake::Free(device, memory, MemoryKind::kDevice);
}

int SynclineCudaAllocateHost(int32_t device, size_t bytes, void** memory) {
  return fake::Allocate(device, bytes, MemoryKind::kPageLocked, memory);
}

int SynclineCudaFreeHost(int32_t device, void* memory) {
  return fake::Free(device, memory, MemoryKind::kPageLocked);
}

int SynclineCudaCopy(int32_t device, void* to, const void* from, size_t bytes,
                     void* stream) {
  if (stream == nullptr) return fake::kInvalidValue;
  if (bytes == 0) return fake::kNoError;
  if (to == nullptr || from == nullptr) return fake::kInvalidValue;
  if (!fake::Exists(device)) return fake::kInvalidDevice;
  const auto queue = fake::QueueAt(device, stream);
  if (queue == nullptr) return fake::kInvalidHandle;
  const int error = fake::Count();
  return error != fake::kNoError ? error : Move(*queue, to, from, bytes);
}

int SynclineCudaClear(int32_t device, void* memory, size_t bytes, void* stream) {
  if (stream == nullptr) return fake::kInvalidValue;
  if (bytes == 0) return fake::kNoError;
  if (memory == nullptr) return fake::kInvalidValue;
  if (!fake::Exists(device)) return fake::kInvalidDevice;
  const auto queue = fake::QueueAt(device, stream);
  if (queue == nullptr) return fake::kInvalidHandle;
  const int error = fake::Count();
  if (error != fake::kNoError) return error;
  queue->Enqueue([memory, bytes, is_legal = fake::KernelsReach(memory)] {
    if (!is_legal) return fake::kIllegalAddress;
    std::memset(OnHost(memory), 0, bytes);
    return fake::kNoError;
  });
  return fake::kNoError;
}
