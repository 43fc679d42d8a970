#include "worker/client/memory_view.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/tiling.h"

namespace syncline {

std::span<const float> ConstMemoryView::AsFloats(size_t first, size_t count) const {
  SYNCLINE_CHECK(IsReadInPlace());
  return {static_cast<const float*>(memory_.data) + first, count};
}

std::span<const float> ConstMemoryView::Read(size_t first, size_t count,
                                             std::span<float> scratch) const {
  if (IsReadInPlace()) return AsFloats(first, count);
  const std::span<float> values = scratch.first(count);
  if (dtype() == DType::kF32) {
    ReadBytes(first, count, std::as_writable_bytes(values));
    return values;
  }
  if (device() == nullptr) {
    Widen({.data = Bytes(first, count).data(), .dtype = dtype()}, values);
    return values;
  }
  const Buffer narrow = Buffer::Allocate(count * DTypeBytes(dtype()));
  ReadBytes(first, count, {narrow.data(), narrow.size()});
  Widen({.data = narrow.data(), .dtype = dtype()}, values);
  return values;
}

void ConstMemoryView::ReadBytes(size_t first, size_t count, MutableByteView to) const {
  const ByteView from = Bytes(first, count);
  SYNCLINE_CHECK(to.size() == from.size());
  if (device() != nullptr) {
    device()->Read(from.data(), to);
  } else {
    std::ranges::copy(from, to.begin());
  }
}

MemoryView MemoryView::Part(size_t first, size_t count) const {
  auto* const bytes = static_cast<std::byte*>(memory_.data);
  return {{bytes + first * DTypeBytes(memory_.dtype), memory_.dtype, memory_.device},
          count};
}

std::span<float> MemoryView::AsFloats() const {
  SYNCLINE_CHECK(memory_.dtype == DType::kF32 && device() == nullptr);
  return {static_cast<float*>(memory_.data), elements_};
}

void MemoryView::Write(std::span<const float> values) const {
  if (device() == nullptr) return Narrow(values, memory_);
  if (dtype() == DType::kF32) return WriteBytes(std::as_bytes(values));
  const Buffer narrow = Buffer::Allocate(values.size() * DTypeBytes(dtype()));
  Narrow(values, {.data = narrow.data(), .dtype = dtype()});
  WriteBytes(narrow.view());
}

void MemoryView::WriteBytes(ByteView bytes) const {
  SYNCLINE_CHECK(bytes.size() == elements_ * DTypeBytes(memory_.dtype));
  if (device() != nullptr) return device()->Write(bytes, memory_.data);
  std::ranges::copy(bytes, static_cast<std::byte*>(memory_.data));
}

ByteView BytesOnHost(const ConstMemoryView& memory, Buffer& copy) {
  if (memory.device() == nullptr) return memory.bytes();
  copy = Buffer::Allocate(memory.bytes().size());
  memory.ReadBytes(0, memory.size(), {copy.data(), copy.size()});
  return copy.view();
}

bool IsEncodingOf(const Codec& codec, DType dtype) {
  return codec.id() == CodecOf(dtype).id();
}

Payload EncodeInto(std::shared_ptr<std::byte> memory, const DenseBlock& block,
                   std::vector<float>& scratch) {
  const auto& [codec, label, values, checksum] = block;
  const bool is_encoded = IsEncodingOf(codec, values.dtype());
  if (!is_encoded && !values.IsReadInPlace()) scratch.resize(kTileElements);
  BlockWriter writer(label, checksum, std::move(memory));
  for (uint32_t tile = 0; tile < TilesOf(values.size()); ++tile) {
    const size_t first = size_t{tile} * kTileElements;
    const size_t count = TileElements(values.size(), tile);
    const MutableByteView room = writer.NextTile(codec);
    if (is_encoded) {
      const size_t bytes = values.Bytes(first, count).size();
      values.ReadBytes(first, count, room.first(bytes));
      writer.EndTile(bytes);
    } else {
      writer.EndTile(codec.Encode(values.Read(first, count, scratch), {},
                                  ContextAt(label, first), room));
    }
  }
  return writer.Finish();
}

}  // namespace syncline
