#include "comm/codec/frame.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// Full tiles of every codec are multiples of this, so padding only follows the last,
// short tile.
constexpr std::byte kZeros[kTileAlignment] = {};

constexpr size_t Padded(size_t bytes) {
  return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

uint32_t HeaderCrc(const TileHeader& header) {
  return Crc32c(
      std::as_bytes(std::span(&header, 1)).first(offsetof(TileHeader, header_crc)));
}

uint32_t FirstTile(const BlockRange& range) {
  return static_cast<uint32_t>(range.first_element / kTileElements);
}

void CheckRange(const BlockRange& range) {
  SYNCLINE_CHECK(range.first_element % kTileElements == 0);
  SYNCLINE_CHECK(range.elements > 0 && range.elements <= kBlockElements);
}

// The header of a block's first tile, without what the encoding decides.
TileHeader FirstHeader(const Codec& codec, const BlockLabel& label, Checksum checksum) {
  TileHeader header;
  header.codec = static_cast<uint16_t>(codec.id());
  header.tensor = label.range.tensor;
  header.tile = FirstTile(label.range);
  header.step = label.step;
  header.epoch = label.epoch;
  if (checksum == Checksum::kHeaderAndPayload) header.flags = kTilePayloadCrc;
  return header;
}

// Completes `header`, writes it to `out`, and makes it the header of the next tile.
void WriteHeader(TileHeader& header, uint32_t elements, ByteView encoded,
                 std::byte* out) {
  header.elements = elements;
  header.nonzeros = elements;
  header.payload_bytes = static_cast<uint32_t>(encoded.size());
  if ((header.flags & kTilePayloadCrc) != 0) header.payload_crc = Crc32c(encoded);
  header.header_crc = HeaderCrc(header);
  std::memcpy(out, &header, sizeof(header));
  ++header.tile;
}

Payload BorrowFp32(TileHeader header, const Buffer& buffer,
                   std::span<const float> values) {
  const ByteView bytes = std::as_bytes(values);
  std::byte* out = buffer.data();
  for (size_t first = 0; first < values.size(); first += kTileElements) {
    const auto tile =
        values.subspan(first, std::min<size_t>(kTileElements, values.size() - first));
    WriteHeader(header, static_cast<uint32_t>(tile.size()), std::as_bytes(tile), out);
    out += sizeof(header);
  }
  Payload payload = {Slice::Of(buffer), Slice::Borrowed(bytes)};
  const size_t padding = Padded(bytes.size()) - bytes.size();
  if (padding > 0) payload.push_back(Slice::Borrowed(ByteView(kZeros, padding)));
  return payload;
}

// A refusal that names the tile; `what` is only built when it is needed.
template <typename... Parts>
absl::Status Refuse(const BlockRange& range, uint32_t tile, const Parts&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", range.tensor, " tile ", tile, ": ", what...));
}

// Everything that can be checked without the encoded bytes.
absl::Status CheckHeader(const TileHeader& header, const BlockLabel& expected,
                         uint32_t tile, const Codec& codec) {
  const BlockRange& range = expected.range;
  const uint32_t elements = TileElements(range.elements, tile - FirstTile(range));
  const auto refuse = [&](absl::string_view field, uint64_t got, uint64_t want) {
    return Refuse(range, tile, field, " is ", got, ", expected ", want);
  };
  if (header.magic != kTileMagic) return refuse("magic", header.magic, kTileMagic);
  if (header.version != kTileVersion)
    return refuse("version", header.version, kTileVersion);
  if (header.header_crc != HeaderCrc(header)) {
    return absl::DataLossError(absl::StrCat("tensor ", range.tensor, " tile ", tile,
                                            ": header CRC does not match"));
  }
  const auto codec_id = static_cast<uint16_t>(codec.id());
  if (header.codec != codec_id) return refuse("codec", header.codec, codec_id);
  if (header.tensor != range.tensor) return refuse("tensor", header.tensor, range.tensor);
  if (header.tile != tile) return refuse("tile", header.tile, tile);
  if (header.elements != elements) return refuse("elements", header.elements, elements);
  // All codecs so far are dense.
  if (header.nonzeros != elements) return refuse("nonzeros", header.nonzeros, elements);
  if (header.step != expected.step) return refuse("step", header.step, expected.step);
  if (header.epoch != expected.epoch)
    return refuse("epoch", header.epoch, expected.epoch);
  if ((header.flags & ~kTilePayloadCrc) != 0) {
    return refuse("flags", header.flags, kTilePayloadCrc);
  }
  if ((header.flags & kTilePayloadCrc) == 0 && header.payload_crc != 0) {
    return refuse("payload CRC without its flag", header.payload_crc, 0);
  }
  if ((header.reserved0 | header.reserved1) != 0) {
    return refuse("reserved field", header.reserved0 | header.reserved1, 0);
  }
  const size_t limit = codec.MaxEncodedBytes(elements);
  if (header.payload_bytes > limit)
    return refuse("payload bytes", header.payload_bytes, limit);
  return absl::OkStatus();
}

absl::Status CheckEncoded(const TileHeader& header, ByteView encoded, ByteView padding,
                          const Codec& codec) {
  if ((header.flags & kTilePayloadCrc) != 0 && header.payload_crc != Crc32c(encoded)) {
    return absl::DataLossError(absl::StrCat("tensor ", header.tensor, " tile ",
                                            header.tile, ": payload CRC does not match"));
  }
  if (std::memcmp(padding.data(), kZeros, padding.size()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", header.tensor, " tile ",
                                                   header.tile, ": padding is not zero"));
  }
  return codec.Validate(encoded, header.elements);
}

}  // namespace

size_t MaxBlockBytes(const Codec& codec, uint32_t elements) {
  size_t bytes = 0;
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    bytes +=
        sizeof(TileHeader) + Padded(codec.MaxEncodedBytes(TileElements(elements, tile)));
  }
  return bytes;
}

BlockWriter::BlockWriter(const Codec& codec, const BlockLabel& label, Checksum checksum,
                         std::shared_ptr<std::byte> memory)
    : codec_(codec),
      elements_(label.range.elements),
      memory_(std::move(memory)),
      header_(FirstHeader(codec, label, checksum)),
      used_(sizeof(TileHeader) * TilesOf(elements_)) {
  CheckRange(label.range);
}

MutableByteView BlockWriter::NextTile() {
  SYNCLINE_CHECK(tile_ < TilesOf(elements_));
  return {memory_.get() + used_, codec_.MaxEncodedBytes(TileElements(elements_, tile_))};
}

void BlockWriter::EndTile(size_t encoded_bytes) {
  const MutableByteView room = NextTile();
  SYNCLINE_CHECK(encoded_bytes <= room.size());
  WriteHeader(header_, TileElements(elements_, tile_), room.first(encoded_bytes),
              memory_.get() + tile_ * sizeof(TileHeader));
  std::memset(room.data() + encoded_bytes, 0, Padded(encoded_bytes) - encoded_bytes);
  used_ += Padded(encoded_bytes);
  ++tile_;
}

Payload BlockWriter::Finish() {
  SYNCLINE_CHECK(tile_ == TilesOf(elements_));
  const std::byte* bytes = memory_.get();
  return {Slice{bytes, used_, std::move(memory_)}};
}

Payload EncodeBlock(const Codec& codec, const BlockLabel& label, std::span<float> values,
                    Checksum checksum, BufferPool& pool) {
  CheckRange(label.range);
  SYNCLINE_CHECK(values.size() == label.range.elements);
  if (codec.id() == CodecId::kFp32) {
    const Buffer headers = pool.Allocate(sizeof(TileHeader) * TilesOf(values.size()));
    return BorrowFp32(FirstHeader(codec, label, checksum), headers, values);
  }
  const Buffer memory = pool.Allocate(MaxBlockBytes(codec, label.range.elements));
  BlockWriter writer(codec, label, checksum, memory.owner());
  for (size_t first = 0; first < values.size(); first += kTileElements) {
    const auto tile =
        values.subspan(first, std::min<size_t>(kTileElements, values.size() - first));
    writer.EndTile(codec.Encode(tile, ContextAt(label, first), writer.NextTile()));
  }
  return writer.Finish();
}

absl::StatusOr<BlockView> ParseBlock(ByteView payload, const BlockLabel& expected,
                                     const Codec& codec) {
  const BlockRange& range = expected.range;
  CheckRange(range);
  const uint32_t tiles = TilesOf(range.elements);
  size_t used = tiles * sizeof(TileHeader);
  if (payload.size() < used) {
    return Refuse(range, FirstTile(range), "payload has ", payload.size(),
                  " bytes, but the ", tiles, " headers alone need ", used);
  }
  BlockView block;
  block.codec = &codec;
  for (uint32_t i = 0; i < tiles; ++i) {
    const uint32_t tile = FirstTile(range) + i;
    TileHeader header;
    std::memcpy(&header, payload.data() + i * sizeof(header), sizeof(header));
    SYNCLINE_RETURN_IF_ERROR(CheckHeader(header, expected, tile, codec));
    // No overflow: CheckHeader has bounded payload_bytes.
    const size_t padded_bytes = Padded(header.payload_bytes);
    if (padded_bytes > payload.size() - used) {
      return Refuse(range, tile, "payload ends after ", payload.size() - used, " of ",
                    padded_bytes, " bytes");
    }
    const ByteView padded = payload.subspan(used, padded_bytes);
    const ByteView encoded = padded.first(header.payload_bytes);
    SYNCLINE_RETURN_IF_ERROR(
        CheckEncoded(header, encoded, padded.subspan(header.payload_bytes), codec));
    block.tiles.push_back({encoded, i * kTileElements, header.elements});
    used += padded_bytes;
  }
  if (used != payload.size()) {
    return Refuse(range, FirstTile(range) + tiles - 1, payload.size() - used,
                  " bytes follow the last tile");
  }
  return block;
}

}  // namespace syncline
