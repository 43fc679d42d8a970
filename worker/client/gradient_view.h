// A gradient where the program has it, in its own element type. What needs FP32 reads it
// tile by tile, so that no copy of the whole is ever made.
//
//   std::vector<float> scratch(kTileElements);
//   const std::span<const float> tile = gradient.Read(first, count, scratch);
//
// Thread safety: reads only; the memory belongs to the program.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/base/dtype.h"
#include "worker/client/tensor_memory.h"

namespace syncline {

class GradientView {
 public:
  GradientView() = default;
  // FP32 memory is one.
  GradientView(std::span<const float> values)
      : memory_{.data = values.data()}, elements_(values.size()) {}
  GradientView(const std::vector<float>& values)
      : GradientView(std::span<const float>(values)) {}
  GradientView(const ConstTensorMemory& memory, size_t elements)
      : memory_(memory), elements_(elements) {}

  size_t size() const { return elements_; }
  bool empty() const { return elements_ == 0; }
  DType dtype() const { return memory_.dtype; }
  ByteView bytes() const { return Bytes(0, elements_); }
  // Of `count` elements from number `first` on, as all below.
  ByteView Bytes(size_t first, size_t count) const {
    const size_t width = DTypeBytes(memory_.dtype);
    return {static_cast<const std::byte*>(memory_.data) + first * width, count * width};
  }
  // REQUIRES: dtype() == DType::kF32.
  std::span<const float> AsFloats(size_t first, size_t count) const;
  // The memory itself where it is FP32, otherwise `scratch`, with these values.
  // REQUIRES: count <= scratch.size() unless it is FP32.
  std::span<const float> Read(size_t first, size_t count, std::span<float> scratch) const;

 private:
  ConstTensorMemory memory_ = {};
  size_t elements_ = 0;
};

}  // namespace syncline
