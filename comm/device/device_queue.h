// What one thread has of a GPU: a stream, and memory that it reaches fast. Each call
// returns once the GPU is through with it.
//
//   DeviceQueue queue(*device);
//   for (const ByteView tile : queue.Encode(codec, {.gradient = gradient, ...})) ...
//   SYNCLINE_RETURN_IF_ERROR(device->status());
//
// After an error (Device::status) calls do nothing.
//
// Thread safety: none; one thread's. What queues of several threads write must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/device/device.h"

namespace syncline {

class DeviceQueue {
 public:
  // Whose the thread is: Syncline's, whose current device is then this one, or the
  // program's, whose current device stays what it was.
  enum class Thread { kOurs, kOthers };
  // `device` outlives it. Its stream is made with the first call.
  explicit DeviceQueue(Device& device, Thread thread = Thread::kOthers);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Device& device() { return device_; }

  // Host memory of any kind. After an error what is read is zeros.
  void Read(const void* from, MutableByteView to);
  void Write(ByteView from, void* to);
  // Zeros.
  void Clear(void* to, size_t bytes);

  // Of a block: what is there, good until the next call; empty after an error. And parts
  // that follow each other there.
  ByteView Fetch(const void* from, size_t bytes);
  void Put(std::span<const ByteView> parts, void* to);

  // Encodes encoding.elements from encoding.gradient on: a view for each tile, good until
  // the next call; empty where the tile is not finite, and all after an error. `device`,
  // `out`, `tile_bytes` and `workspace` of the encoding are the queue's.
  std::span<const ByteView> Encode(const SynclineCudaCodec& codec,
                                   SynclineCudaEncoding encoding);

  // FP32 as BF16, rounded to nearest even; good until the next call.
  ByteView ToBf16(const float* from, size_t elements);

  // Adds the tiles of a block to FP32 values. False: the kernels take one of them for no
  // encoding; what they took is added. REQUIRES: one for each tile, of at most the length
  // that codec.id's encoder makes, but the last all of full tiles.
  bool DecodeAdd(const SynclineCudaCodec& codec, std::span<const ByteView> tiles,
                 float* values, uint64_t elements);

  // Likewise, of BF16 as FP32.
  void FromBf16(std::span<const ByteView> parts, float* to);

 private:
  bool Open();
  void* handle();
  // To host_, one after another; how many bytes, 0 after an error.
  size_t Gather(std::span<const ByteView> parts);
  bool Copy(void* to, const void* from, size_t bytes, const char* what);
  bool Wait(const char* what);
  bool Succeeded(int error, const char* what) { return device_.Succeeded(error, what); }

  Device& device_;
  const Thread thread_;
  void* stream_ = nullptr;
  DeviceBuffer host_;
  DeviceBuffer near_;  // what the kernels read or write, in the device's memory
  DeviceBuffer workspace_;
  std::vector<ByteView> tiles_;
};

}  // namespace syncline
