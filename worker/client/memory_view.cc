#include "worker/client/memory_view.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/tiling.h"

namespace syncline {

std::span<const float> ConstMemoryView::AsFloats(size_t first, size_t count) const {
  SYNCLINE_CHECK(memory_.dtype == DType::kF32);
  return {static_cast<const float*>(memory_.data) + first, count};
}

std::span<const float> ConstMemoryView::Read(size_t first, size_t count,
                                             std::span<float> scratch) const {
  if (memory_.dtype == DType::kF32) return AsFloats(first, count);
  const std::span<float> values = scratch.first(count);
  Widen({.data = Bytes(first, count).data(), .dtype = memory_.dtype}, values);
  return values;
}

MemoryView MemoryView::Part(size_t first, size_t count) const {
  auto* const bytes = static_cast<std::byte*>(memory_.data);
  return {{.data = bytes + first * DTypeBytes(memory_.dtype), .dtype = memory_.dtype},
          count};
}

std::span<float> MemoryView::AsFloats() const {
  SYNCLINE_CHECK(memory_.dtype == DType::kF32);
  return {static_cast<float*>(memory_.data), elements_};
}

void MemoryView::WriteBytes(ByteView bytes) const {
  SYNCLINE_CHECK(bytes.size() == elements_ * DTypeBytes(memory_.dtype));
  std::ranges::copy(bytes, static_cast<std::byte*>(memory_.data));
}

bool IsEncodingOf(const Codec& codec, DType dtype) {
  return codec.id() == CodecOf(dtype).id();
}

Payload EncodeInto(std::shared_ptr<std::byte> memory, const DenseBlock& block,
                   std::vector<float>& scratch) {
  const auto& [codec, label, values, checksum] = block;
  const bool is_encoded = IsEncodingOf(codec, values.dtype());
  if (!is_encoded && values.dtype() != DType::kF32) scratch.resize(kTileElements);
  BlockWriter writer(label, checksum, std::move(memory));
  for (uint32_t tile = 0; tile < TilesOf(values.size()); ++tile) {
    const size_t first = size_t{tile} * kTileElements;
    const size_t count = TileElements(values.size(), tile);
    const MutableByteView room = writer.NextTile(codec);
    if (is_encoded) {
      const ByteView bytes = values.Bytes(first, count);
      std::ranges::copy(bytes, room.begin());
      writer.EndTile(bytes.size());
    } else {
      writer.EndTile(codec.Encode(values.Read(first, count, scratch), {},
                                  ContextAt(label, first), room));
    }
  }
  return writer.Finish();
}

}  // namespace syncline
