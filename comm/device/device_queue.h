// The GPU resources of one thread: a stream, and memory for fast transfers. Each call
// returns when the GPU has finished its work.
//
//   DeviceQueue queue(*device);
//   for (const ByteView tile : queue.Encode(codec, {.gradient = gradient, ...})) ...
//   SYNCLINE_RETURN_IF_ERROR(device->status());
//
// After an error (Device::status) calls do nothing.
//
// Thread safety: none; a queue belongs to one thread. Queues of several threads must not
// write to overlapping memory.
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
  // The owner of the thread. kOurs: Syncline; this device becomes and stays the thread's
  // current device. kOthers: the program; the thread's current device does not change.
  enum class Thread { kOurs, kOthers };
  // `device` must outlive the queue. The first call creates the stream.
  explicit DeviceQueue(Device& device, Thread thread = Thread::kOthers);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Device& device() { return device_; }

  // Copy to or from host memory of any kind. After an error, Read returns zeros.
  void Read(const void* from, MutableByteView to);
  void Write(ByteView from, void* to);
  // Writes zeros.
  void Clear(void* to, size_t bytes);

  // Fetch returns the content of device memory for a block: valid until the next call,
  // empty after an error. Put writes `parts` there, one after another.
  ByteView Fetch(const void* from, size_t bytes);
  void Put(std::span<const ByteView> parts, void* to);

  // Encodes encoding.elements values from encoding.gradient on. Returns a view for each
  // tile, valid until the next call. A view is empty if its tile is not finite; all are
  // empty after an error. The queue sets `device`, `out`, `tile_bytes` and `workspace` of
  // the encoding.
  std::span<const ByteView> Encode(const SynclineCudaCodec& codec,
                                   SynclineCudaEncoding encoding);

  // Returns FP32 values as BF16, rounded to nearest even. Valid until the next call.
  ByteView ToBf16(const float* from, size_t elements);

  // Adds the tiles of a block to FP32 values. Returns false if the kernels reject a tile
  // as no valid encoding; the other tiles are added. REQUIRES: `tiles` has one entry for
  // each tile, none longer than what codec.id's encoder produces, and all but the last
  // are full tiles.
  bool DecodeAdd(const SynclineCudaCodec& codec, std::span<const ByteView> tiles,
                 float* values, uint64_t elements);

  // Writes BF16 values as FP32.
  void FromBf16(std::span<const ByteView> parts, float* to);

 private:
  bool Open();
  void* handle();
  // Copies `parts` to host_, one after another. Returns the number of bytes, 0 after an
  // error.
  size_t Gather(std::span<const ByteView> parts);
  bool Copy(void* to, const void* from, size_t bytes, const char* what);
  bool Wait(const char* what);
  bool Succeeded(int error, const char* what) { return device_.Succeeded(error, what); }

  Device& device_;
  const Thread thread_;
  void* stream_ = nullptr;
  DeviceBuffer host_;
  DeviceBuffer near_;  // device memory that kernels read or write
  DeviceBuffer workspace_;
  std::vector<ByteView> tiles_;
};

}  // namespace syncline
