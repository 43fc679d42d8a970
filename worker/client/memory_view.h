// Gradients and weights where the program has them, in its own element type, on the host
// or on a GPU. What needs FP32 reads and writes them tile by tile, so that no copy of the
// whole is ever made.
//
//   std::vector<float> scratch(kTileElements);
//   const std::span<const float> tile = gradient.Read(first, count, scratch);
//
// Reading and writing a GPU's memory waits for the GPU. After an error of it, what is read
// is zeros: ask device()->status() before the values are used.
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
  // FP32 memory is one.
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
  // Whose memory it is; null: the host's.
  Device* device() const { return memory_.device; }
  // Whether floats lie here, for the host to read.
  bool IsReadInPlace() const { return dtype() == DType::kF32 && device() == nullptr; }
  // Where it is; only the host's may be looked at.
  ByteView bytes() const { return Bytes(0, elements_); }
  // Of `count` elements from number `first` on, as all below.
  ByteView Bytes(size_t first, size_t count) const {
    const size_t width = DTypeBytes(memory_.dtype);
    return {static_cast<const std::byte*>(memory_.data) + first * width, count * width};
  }
  // REQUIRES: IsReadInPlace().
  std::span<const float> AsFloats(size_t first, size_t count) const;
  // The memory itself where it IsReadInPlace(), otherwise `scratch`, with these values.
  // REQUIRES: count <= scratch.size() unless it is.
  std::span<const float> Read(size_t first, size_t count, std::span<float> scratch) const;
  // The bytes as they lie there. REQUIRES: to.size() is that of `count` elements.
  void ReadBytes(size_t first, size_t count, MutableByteView to) const;
  ConstMemoryView Part(size_t first, size_t count) const {
    return {{Bytes(first, count).data(), memory_.dtype, memory_.device}, count};
  }

 private:
  ConstTensorMemory memory_ = {};
  size_t elements_ = 0;
};

// What is written, too.
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
  // Rounded to nearest. REQUIRES: values.size() == size().
  void Write(std::span<const float> values) const;
  // REQUIRES: bytes.size() is that of the memory.
  void WriteBytes(ByteView bytes) const;

 private:
  TensorMemory memory_ = {};
  size_t elements_ = 0;
};

// Whether the kernels of a GPU can read it, and write to it.
inline bool IsAlignedForDevice(const ConstMemoryView& memory) {
  constexpr uintptr_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(memory.bytes().data()) % kAlignment == 0;
}

// Where the host may read them: a GPU's in `copy`, which then keeps them.
ByteView BytesOnHost(const ConstMemoryView& memory, Buffer& copy);

// Whether what the codec encodes to are the elements themselves, without a change.
bool IsEncodingOf(const Codec& codec, DType dtype);

// The block's elements as its payload, in `memory` of MaxBlockBytes. `scratch` is used
// where they are not FP32.
struct DenseBlock {
  const Codec& codec;
  BlockLabel label = {};
  ConstMemoryView values = {};  // of the block
  Checksum checksum = Checksum::kHeaderOnly;
};
Payload EncodeInto(std::shared_ptr<std::byte> memory, const DenseBlock& block,
                   std::vector<float>& scratch);

}  // namespace syncline
