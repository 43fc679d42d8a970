#include "worker/client/view_landing.h"

#include <algorithm>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/codec/view_digest.h"
#include "comm/device/device_codec.h"
#include "comm/transport/message.h"
#include "worker/client/device_ways.h"

namespace syncline {
namespace {

using Result = ViewLanding::Result;

bool IsDelta(const TileView& tile, const Transfer& transfer) {
  return transfer.compresses() && tile.codec == transfer.codec.get();
}

// Writes whole values in the element type of the weights. REQUIRES: ParseBlock has
// validated the tile.
void LandWhole(const TileView& tile, const MemoryView& out, CodecWorkspace& workspace) {
  if (IsEncodingOf(*tile.codec, out.dtype())) return out.WriteBytes(tile.bytes);
  workspace.tile.resize(kTileElements);
  const std::span<float> values = std::span(workspace.tile).first(tile.elements);
  SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, values).ok());
  out.Write(values);
}

Result Compared(const TileView& tile, std::span<const float> values) {
  const bool differs = tile.view_crc && *tile.view_crc != Crc32c(std::as_bytes(values));
  return differs ? Result::kDiverged : Result::kLanded;
}

Result LandTile(const TileView& tile, const MemoryView& out, const Transfer& transfer,
                CodecWorkspace& workspace) {
  if (out.dtype() != DType::kF32) {
    SYNCLINE_CHECK(!IsDelta(tile, transfer));
    LandWhole(tile, out, workspace);
    return Result::kLanded;
  }
  const std::span<float> values = out.AsFloats();
  SYNCLINE_CHECK((IsDelta(tile, transfer) ? tile.codec->DecodeAdd(tile.bytes, 1, values)
                                          : tile.codec->Decode(tile.bytes, values))
                     .ok());
  return Compared(tile, values);
}

// Adds the deltas of a block to weights on a GPU. Deltas that the kernels cannot read are
// added on the host, to a copy.
class DeltasOnDevice {
 public:
  DeltasOnDevice(const BlockView& view, const MemoryView& weights, const Codec& codec)
      : view_(view), weights_(weights), codec_(codec) {}

  // Returns false if a kernel rejects a delta. The weights are invalid then.
  bool Add(CodecWorkspace& workspace) {
    const std::optional<SynclineCudaCodec> decoder =
        IsAlignedForDevice(weights_) ? DecoderOnDevice(codec_) : std::nullopt;
    std::vector<ByteView> readable(view_.tiles.size());
    std::vector<std::vector<std::byte>> memories(view_.tiles.size());
    for (size_t i = 0; i < view_.tiles.size(); ++i) {
      const TileView& tile = view_.tiles[i];
      if (tile.codec != &codec_) continue;
      const std::optional<ByteView> bytes =
          decoder ? ReadableOnDevice(codec_, tile.bytes, tile.elements, memories[i])
                  : std::nullopt;
      if (bytes) {
        readable[i] = *bytes;
      } else {
        AddHere(tile, workspace);
      }
    }
    if (std::ranges::all_of(readable, &ByteView::empty)) return true;
    return workspace.QueueOf(*weights_.device())
        .DecodeAdd(*decoder, readable, static_cast<float*>(weights_.data()),
                   weights_.size());
  }

 private:
  void AddHere(const TileView& tile, CodecWorkspace& workspace) const {
    const MemoryView out = weights_.Part(tile.first_element, tile.elements);
    workspace.tile.resize(kTileElements);
    const std::span<float> values = std::span(workspace.tile).first(tile.elements);
    ConstMemoryView(out).Read(0, tile.elements, values);
    SYNCLINE_CHECK(tile.codec->DecodeAdd(tile.bytes, 1, values).ok());
    out.Write(values);
  }

  const BlockView& view_;
  const MemoryView& weights_;
  const Codec& codec_;
};

// Writes adjacent tiles, which all have the same codec.
void LandWholeOnDevice(std::span<const TileView> tiles, const MemoryView& weights,
                       CodecWorkspace& workspace) {
  const Codec& codec = *tiles.front().codec;
  if (!IsDenseToDevice(codec, weights.dtype())) {
    for (const TileView& tile : tiles) {
      LandWhole(tile, weights.Part(tile.first_element, tile.elements), workspace);
    }
    return;
  }
  std::vector<ByteView> parts;
  for (const TileView& tile : tiles) parts.push_back(tile.bytes);
  DeviceQueue& queue = workspace.QueueOf(*weights.device());
  void* const to = weights.Part(tiles.front().first_element, 0).data();
  if (IsEncodingOf(codec, weights.dtype())) {
    queue.Put(parts, to);
  } else {
    queue.FromBf16(parts, static_cast<float*>(to));
  }
}

Result LandOnDevice(const BlockView& view, const MemoryView& weights,
                    const Transfer& transfer, CodecWorkspace& workspace) {
  const std::span<const TileView> tiles = view.tiles;
  for (size_t first = 0, last = 0; first < tiles.size(); first = last) {
    last = first + 1;
    while (last < tiles.size() && tiles[last].codec == tiles[first].codec) ++last;
    if (IsDelta(tiles[first], transfer)) continue;
    LandWholeOnDevice(tiles.subspan(first, last - first), weights, workspace);
  }
  if (!transfer.compresses()) return Result::kLanded;
  if (!DeltasOnDevice(view, weights, *transfer.codec).Add(workspace)) {
    return Result::kDiverged;
  }
  for (const TileView& tile : view.tiles) {
    if (!tile.view_crc) continue;
    workspace.tile.resize(kTileElements);
    const Result result = Compared(
        tile,
        ConstMemoryView(weights).Read(tile.first_element, tile.elements, workspace.tile));
    if (result != Result::kLanded) return result;
  }
  return Result::kLanded;
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
  if (place.weights.device() != nullptr) return false;  // Land waits for the GPU
  if (place.range.elements < kTileElements) return true;
  const bool has_deltas = options_.transfers[place.range.tensor].publish.compresses();
  return !has_deltas && IsExact(WholeCodec(place.range.tensor), place.weights.dtype());
}

// Rounds the worker's own values as the servers do, which gives the view that they would
// have sent.
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
                                      CodecWorkspace& workspace) const {
  const bool is_next = place.version && header.step == *place.version + 1;
  if ((header.flags & kFlagUnchanged) != 0) {
    return is_next && payload.empty() ? Result::kLanded : Result::kIgnored;
  }
  if ((header.flags & kFlagHeld) != 0) {
    if (!place.is_own || !payload.empty()) return Result::kIgnored;
    LandHeld(place, workspace.tile);
    return Result::kLanded;
  }
  const Transfer& transfer = options_.transfers[place.range.tensor].publish;
  const BlockLabel label{
      .range = place.range, .step = header.step, .epoch = header.epoch};
  const auto view = ParseBlock(payload, label, Codecs(place.range.tensor));
  if (!view.ok()) return Result::kIgnored;
  const auto is_delta = [&](const TileView& tile) { return IsDelta(tile, transfer); };
  if (!is_next && std::ranges::any_of(view->tiles, is_delta)) return Result::kIgnored;
  if (place.weights.device() != nullptr) {
    return LandOnDevice(*view, place.weights, transfer, workspace);
  }
  for (const TileView& tile : view->tiles) {
    const MemoryView out = place.weights.Part(tile.first_element, tile.elements);
    const Result result = LandTile(tile, out, transfer, workspace);
    if (result != Result::kLanded) return result;
  }
  return Result::kLanded;
}

}  // namespace syncline
