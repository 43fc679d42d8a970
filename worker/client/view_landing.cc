#include "worker/client/view_landing.h"

#include <algorithm>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/codec/view_digest.h"
#include "comm/transport/message.h"

namespace syncline {
namespace {

bool IsDelta(const TileView& tile, const Transfer& transfer) {
  return transfer.compresses() && tile.codec == transfer.codec.get();
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

uint64_t ViewLanding::Digest(const BlockRange& range,
                             std::span<const float> weights) const {
  const BlockLabel label = {.range = range, .seed = options_.seed};
  return ViewDigest(
      EncodeBlock(WholeCodec(range.tensor), label, weights, Checksum::kHeaderOnly, pool_),
      range.elements);
}

// What the servers would have sent.
void ViewLanding::LandHeld(const Place& place) const {
  const Codec& codec = WholeCodec(place.range.tensor);
  if (codec.id() == CodecId::kFp32) return;
  const BlockLabel label = {.range = place.range, .seed = options_.seed};
  const Buffer encoded = pool_.Allocate(codec.MaxEncodedBytes(kTileElements));
  for (size_t first = 0; first < place.weights.size(); first += kTileElements) {
    const auto tile = place.weights.subspan(
        first, std::min<size_t>(kTileElements, place.weights.size() - first));
    const size_t bytes =
        codec.Encode(tile, {}, ContextAt(label, first), {encoded.data(), encoded.size()});
    SYNCLINE_CHECK(codec.Decode(encoded.view().first(bytes), tile).ok());
  }
}

ViewLanding::Result ViewLanding::Land(const MessageHeader& header, ByteView payload,
                                      const Place& place) {
  const bool is_next = place.version && header.step == *place.version + 1;
  if ((header.flags & kFlagUnchanged) != 0) {
    return is_next && payload.empty() ? Result::kLanded : Result::kIgnored;
  }
  if ((header.flags & kFlagHeld) != 0) {
    if (!place.is_own || !payload.empty()) return Result::kIgnored;
    LandHeld(place);
    return Result::kLanded;
  }
  const Transfer& transfer = options_.transfers[place.range.tensor].publish;
  const BlockLabel label{
      .range = place.range, .step = header.step, .epoch = header.epoch};
  const auto view = ParseBlock(payload, label, Codecs(place.range.tensor));
  if (!view.ok()) return Result::kIgnored;
  const auto is_delta = [&](const TileView& tile) { return IsDelta(tile, transfer); };
  if (!is_next && std::ranges::any_of(view->tiles, is_delta)) return Result::kIgnored;
  const CodecTimer timer(options_.clock, place.range.elements, cost_);
  for (const TileView& tile : view->tiles) {
    const auto out = place.weights.subspan(tile.first_element, tile.elements);
    const Result result = LandTile(tile, out, transfer);
    if (result != Result::kLanded) return result;
  }
  return Result::kLanded;
}

ViewLanding::Result ViewLanding::LandTile(const TileView& tile, std::span<float> out,
                                          const Transfer& transfer) {
  // ParseBlock validated it.
  SYNCLINE_CHECK((IsDelta(tile, transfer) ? tile.codec->DecodeAdd(tile.bytes, 1, out)
                                          : tile.codec->Decode(tile.bytes, out))
                     .ok());
  const bool differs = tile.view_crc && *tile.view_crc != Crc32c(std::as_bytes(out));
  return differs ? Result::kDiverged : Result::kLanded;
}

}  // namespace syncline
