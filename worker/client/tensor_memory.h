// Memory of a training program in its own element type, and its conversion to and from
// FP32, in which a session exchanges gradients and weights.
//
// Thread safety: pure functions; the memory belongs to the caller.
#pragma once

#include <cstddef>
#include <span>

#include "comm/base/dtype.h"
#include "comm/codec/codec.h"
#include "comm/device/device.h"

namespace syncline {

// Contiguous memory of all elements of a tensor, on the host or on a GPU. Before a
// program passes GPU memory, the GPU must have finished the work that writes it.
struct TensorMemory {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device* device = nullptr;  // null: the host
};
struct ConstTensorMemory {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Device* device = nullptr;
};

// Returns the codec whose encoding is the elements' own bytes.
const Codec& CodecOf(DType dtype);

// Converts to FP32, which is exact. NaN and infinity are kept. REQUIRES: host memory.
void Widen(const ConstTensorMemory& from, std::span<float> to);

// Rounds to nearest, ties to even. NaN stays NaN, and values that are too large become
// infinity. REQUIRES: host memory.
void Narrow(std::span<const float> from, const TensorMemory& to);

}  // namespace syncline
