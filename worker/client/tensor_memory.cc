#include "worker/client/tensor_memory.h"

#include <algorithm>
#include <memory>

#include "comm/base/buffer.h"
#include "comm/base/check.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"

namespace syncline {
namespace {

// Calls `part` with the first element and the number of elements of each tile.
template <typename Part>
void ForEachTile(size_t elements, const Part& part) {
  for (size_t first = 0; first < elements; first += kTileElements) {
    part(first, std::min<size_t>(kTileElements, elements - first));
  }
}

}  // namespace

// Codecs do the conversions, because their kernels are vectorised.
const Codec& CodecOf(DType dtype) {
  static const auto* codecs = new CodecRegistry(CodecRegistry::Builtin());
  const CodecId id = dtype == DType::kF32    ? CodecId::kFp32
                     : dtype == DType::kBf16 ? CodecId::kBf16
                                             : CodecId::kFp16;
  return **codecs->Find(id);
}

void Widen(const ConstTensorMemory& from, std::span<float> to) {
  SYNCLINE_CHECK(from.device == nullptr);
  const Codec& codec = CodecOf(from.dtype);
  const size_t width = DTypeBytes(from.dtype);
  const ByteView bytes(static_cast<const std::byte*>(from.data), to.size() * width);
  ForEachTile(to.size(), [&](size_t first, size_t count) {
    const auto part = bytes.subspan(first * width, count * width);
    SYNCLINE_CHECK(codec.Decode(part, to.subspan(first, count)).ok());
  });
}

void Narrow(std::span<const float> from, const TensorMemory& to) {
  SYNCLINE_CHECK(to.device == nullptr);
  const Codec& codec = CodecOf(to.dtype);
  const size_t width = DTypeBytes(to.dtype);
  const MutableByteView bytes(static_cast<std::byte*>(to.data), from.size() * width);
  ForEachTile(from.size(), [&](size_t first, size_t count) {
    codec.Encode(from.subspan(first, count), {}, {},
                 bytes.subspan(first * width, count * width));
  });
}

}  // namespace syncline
