#include "worker/client/view_landing.h"

#include <algorithm>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/codec/view_digest.h"
#include "comm/transport/message.h"

namespace syncline {
namespace {

using Result = ViewLanding::Result;

bool IsDelta(const TileView& tile, const Transfer& transfer) {
  return transfer.compresses() && tile.codec == transfer.codec.get();
}

Result LandTile(const TileView& tile, const MemoryView& out, const Transfer& transfer,
                std::vector<float>& scratch) {
  // ParseBlock validated it.
  if (out.dtype() != DType::kF32) {
    SYNCLINE_CHECK(!IsDelta(tile, transfer));
    if (IsEncodingOf(*tile.codec, out.dtype())) {
      out.WriteBytes(tile.bytes);
      return Result::kLanded;
    }
    scratch.resize(kTileElements);
    const std::span<float> values = std::span(scratch).first(tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, values).ok());
    out.Write(values);
    return Result::kLanded;
  }
  const std::span<float> values = out.AsFloats();
  SYNCLINE_CHECK((IsDelta(tile, transfer) ? tile.codec->DecodeAdd(tile.bytes, 1, values)
                                          : tile.codec->Decode(tile.bytes, values))
                     .ok());
  const bool differs = tile.view_crc && *tile.view_crc != Crc32c(std::as_bytes(values));
  return differs ? Result::kDiverged : Result::kLanded;
}

}  // namespace

CodecSet ViewLanding::Codecs(uint32_t tensor) const {
  const Transfer& publish = options_.transfers[tensor].publish;
  if (!publish.compresses()) return {publish.codec.get()};
  return {publish.codec.get(), options_.seed_codec};
}

const Codec& ViewLanding::WholeCodec(uint32_t tensor) const {
  const Transfer& publish = options_.transfers[tensor].publish;
  return publish.compresses() ? *options_.seed_codec : *publish.codec;
}

uint64_t ViewLanding::Digest(const BlockRange& range, const ConstMemoryView& weights) {
  const Codec& codec = WholeCodec(range.tensor);
  const DenseBlock block = {.codec = codec,
                            .label = {.range = range, .seed = options_.seed},
                            .values = weights};
  const Buffer memory = pool_.Allocate(MaxBlockBytes(codec, range.elements));
  return ViewDigest(EncodeInto(memory.owner(), block, scratch_), range.elements);
}

bool ViewLanding::IsExact(const Codec& codec, DType dtype) {
  return codec.id() == CodecId::kFp32 || IsEncodingOf(codec, dtype);
}

bool ViewLanding::IsShort(const MessageHeader& header, const Place& place) const {
  if ((header.flags & kFlagUnchanged) != 0) return true;
  if (place.range.elements < kTileElements) return true;
  const bool has_deltas = options_.transfers[place.range.tensor].publish.compresses();
  return !has_deltas && IsExact(WholeCodec(place.range.tensor), place.weights.dtype());
}

// What the servers would have sent.
void ViewLanding::LandHeld(const Place& place, std::vector<float>& scratch) const {
  const Codec& codec = WholeCodec(place.range.tensor);
  // Values of a narrower type need no rounding.
  if (IsExact(codec, place.weights.dtype())) return;
  const BlockLabel label = {.range = place.range, .seed = options_.seed};
  const Buffer encoded = Buffer::Allocate(codec.MaxEncodedBytes(kTileElements));
  scratch.resize(kTileElements);
  for (uint32_t number = 0; number < TilesOf(place.weights.size()); ++number) {
    const size_t first = size_t{number} * kTileElements;
    const size_t count = TileElements(place.weights.size(), number);
    const MemoryView tile = place.weights.Part(first, count);
    const size_t bytes =
        codec.Encode(ConstMemoryView(tile).Read(0, count, scratch), {},
                     ContextAt(label, first), {encoded.data(), encoded.size()});
    const std::span<float> rounded = std::span(scratch).first(count);
    SYNCLINE_CHECK(codec.Decode(encoded.view().first(bytes), rounded).ok());
    tile.Write(rounded);
  }
}

ViewLanding::Result ViewLanding::Land(const MessageHeader& header, ByteView payload,
                                      const Place& place,
                                      std::vector<float>& scratch) const {
  const bool is_next = place.version && header.step == *place.version + 1;
  if ((header.flags & kFlagUnchanged) != 0) {
    return is_next && payload.empty() ? Result::kLanded : Result::kIgnored;
  }
  if ((header.flags & kFlagHeld) != 0) {
    if (!place.is_own || !payload.empty()) return Result::kIgnored;
    LandHeld(place, scratch);
    return Result::kLanded;
  }
  const Transfer& transfer = options_.transfers[place.range.tensor].publish;
  const BlockLabel label{
      .range = place.range, .step = header.step, .epoch = header.epoch};
  const auto view = ParseBlock(payload, label, Codecs(place.range.tensor));
  if (!view.ok()) return Result::kIgnored;
  const auto is_delta = [&](const TileView& tile) { return IsDelta(tile, transfer); };
  if (!is_next && std::ranges::any_of(view->tiles, is_delta)) return Result::kIgnored;
  for (const TileView& tile : view->tiles) {
    const MemoryView out = place.weights.Part(tile.first_element, tile.elements);
    const Result result = LandTile(tile, out, transfer, scratch);
    if (result != Result::kLanded) return result;
  }
  return Result::kLanded;
}

}  // namespace syncline
