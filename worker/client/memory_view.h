// Views of the program's gradients and weights in their own element type, on the host or
// on a GPU. Code that needs FP32 reads and writes them tile by tile, so the whole is
// never copied.
//
//   std::vector<float> scratch(kTileElements);
//   const std::span<const float> tile = gradient.Read(first, count, scratch);
//
// Reading and writing a GPU's memory waits for the GPU. After an error of the GPU all
// reads return zeros: check device()->status() before using the values.
//
// Thread safety: that of the memory, which belongs to the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/base/dtype.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "worker/client/tensor_memory.h"

namespace syncline {

class ConstMemoryView {
 public:
  ConstMemoryView() = default;
  // FP32 on the host.
  // NOLINTNEXTLINE(google-explicit-constructor)
  ConstMemoryView(std::span<const float> values)
      : memory_{.data = values.data()}, elements_(values.size()) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  ConstMemoryView(const std::vector<float>& values)
      : ConstMemoryView(std::span<const float>(values)) {}
  ConstMemoryView(const ConstTensorMemory& memory, size_t elements)
      : memory_(memory), elements_(elements) {}

  size_t size() const { return elements_; }
  bool empty() const { return elements_ == 0; }
  DType dtype() const { return memory_.dtype; }
  // The GPU whose memory it is; null: the host's.
  Device* device() const { return memory_.device; }
  // Whether the host can read the elements as floats without a copy.
  bool IsReadInPlace() const { return dtype() == DType::kF32 && device() == nullptr; }
  // The memory. Only the host's may be dereferenced.
  ByteView bytes() const { return Bytes(0, elements_); }
  // The memory of `count` elements from `first` on, as in all functions below.
  ByteView Bytes(size_t first, size_t count) const {
    const size_t width = DTypeBytes(memory_.dtype);
    return {static_cast<const std::byte*>(memory_.data) + first * width, count * width};
  }
  // REQUIRES: IsReadInPlace().
  std::span<const float> AsFloats(size_t first, size_t count) const;
  // Returns the elements as floats: in place if IsReadInPlace(), otherwise converted into
  // `scratch`. REQUIRES: IsReadInPlace() or count <= scratch.size().
  std::span<const float> Read(size_t first, size_t count, std::span<float> scratch) const;
  // Copies the bytes, without conversion. REQUIRES: to.size() is that of `count`
  // elements.
  void ReadBytes(size_t first, size_t count, MutableByteView to) const;
  ConstMemoryView Part(size_t first, size_t count) const {
    return {{Bytes(first, count).data(), memory_.dtype, memory_.device}, count};
  }

 private:
  ConstTensorMemory memory_ = {};
  size_t elements_ = 0;
};

// The same, and writable.
class MemoryView {
 public:
  MemoryView() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  MemoryView(std::span<float> values)
      : memory_{.data = values.data()}, elements_(values.size()) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  MemoryView(std::vector<float>& values) : MemoryView(std::span<float>(values)) {}
  MemoryView(const TensorMemory& memory, size_t elements)
      : memory_(memory), elements_(elements) {}

  size_t size() const { return elements_; }
  DType dtype() const { return memory_.dtype; }
  Device* device() const { return memory_.device; }
  void* data() const { return memory_.data; }
  MemoryView Part(size_t first, size_t count) const;
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator ConstMemoryView() const {
    return {{memory_.data, memory_.dtype, memory_.device}, elements_};
  }
  // REQUIRES: FP32 of the host.
  std::span<float> AsFloats() const;
  // Writes the values, rounded to nearest even. REQUIRES: values.size() == size().
  void Write(std::span<const float> values) const;
  // Writes bytes without conversion. REQUIRES: bytes.size() is that of the memory.
  void WriteBytes(ByteView bytes) const;

 private:
  TensorMemory memory_ = {};
  size_t elements_ = 0;
};

// Whether the memory is aligned well enough for the kernels of a GPU.
inline bool IsAlignedForDevice(const ConstMemoryView& memory) {
  constexpr uintptr_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(memory.bytes().data()) % kAlignment == 0;
}

// Returns the bytes where the host may read them. Those of a GPU are copied into `copy`.
ByteView BytesOnHost(const ConstMemoryView& memory, Buffer& copy);

// Whether the codec's encoding of elements of this type is the elements' own bytes.
bool IsEncodingOf(const Codec& codec, DType dtype);

// Encodes the block's elements into `memory` of MaxBlockBytes. `scratch` is used if they
// are not FP32.
struct DenseBlock {
  const Codec& codec;
  BlockLabel label = {};
  ConstMemoryView values = {};  // of the block
  Checksum checksum = Checksum::kHeaderOnly;
};
Payload EncodeInto(std::shared_ptr<std::byte> memory, const DenseBlock& block,
                   std::vector<float>& scratch);

}  // namespace syncline
