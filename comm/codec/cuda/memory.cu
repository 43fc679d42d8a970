#include "comm/codec/cuda/memory.h"

#include "comm/codec/cuda/memory_calls.h"

extern "C" int SynclineCudaUseDevice(int32_t device) {
  return syncline::gpu::UseDevice(device);
}

extern "C" int SynclineCudaStreamCreate(int32_t device, void** stream) {
  return syncline::gpu::CreateStream(device, stream);
}

extern "C" int SynclineCudaStreamDestroy(int32_t device, void* stream) {
  return syncline::gpu::DestroyStream(device, stream);
}

extern "C" int SynclineCudaStreamWait(int32_t device, void* stream) {
  return syncline::gpu::WaitForStream(device, stream);
}

extern "C" void* SynclineCudaStreamHandle(void* stream) {
  return stream == nullptr ? nullptr
                           : static_cast<syncline::gpu::EventStream*>(stream)->stream;
}

extern "C" int SynclineCudaAllocate(int32_t device, size_t bytes, void** memory) {
  return syncline::gpu::AllocateZeros(device, bytes, memory);
}

extern "C" int SynclineCudaFree(int32_t device, void* memory) {
  return syncline::gpu::Free(device, memory);
}

extern "C" int SynclineCudaAllocateHost(int32_t device, size_t bytes, void** memory) {
  return syncline::gpu::AllocatePageLocked(device, bytes, memory);
}

extern "C" int SynclineCudaFreeHost(int32_t device, void* memory) {
  return syncline::gpu::FreePageLocked(device, memory);
}

extern "C" int SynclineCudaCopy(int32_t device, void* to, const void* from, size_t bytes,
                                void* stream) {
  return syncline::gpu::Copy(device, {.to = to, .from = from, .bytes = bytes}, stream);
}

extern "C" int SynclineCudaClear(int32_t device, void* memory, size_t bytes,
                                 void* stream) {
  return syncline::gpu::Clear(device, memory, bytes, stream);
}
