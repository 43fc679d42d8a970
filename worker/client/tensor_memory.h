// Memory of a training program in its own element type, and the step between it and the
// FP32 in which a session exchanges gradients and weights.
//
// Thread safety: functions only; the memory belongs to the caller.
#pragma once

#include <cstddef>
#include <span>

#include "comm/base/dtype.h"
#include "comm/codec/codec.h"
#include "comm/device/device.h"

namespace syncline {

// As many contiguous elements as the tensor's shape says, on the host or on a GPU. One of
// a GPU is complete when it is handed over: the GPU is through with whatever made it.
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

// Whose encoding is the elements as they lie in memory.
const Codec& CodecOf(DType dtype);

// Exact; NaN and infinity stay what they are. Of host memory, as is the next one.
void Widen(const ConstTensorMemory& from, std::span<float> to);

// To nearest, ties to even; a NaN stays a NaN, what is too large becomes infinity.
void Narrow(std::span<const float> from, const TensorMemory& to);

}  // namespace syncline
