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

// Returns the header of a block's first tile, without the fields that depend on the
// encoding.
TileHeader FirstHeader(const BlockLabel& label, Checksum checksum) {
  TileHeader header;
  header.tensor = label.range.tensor;
  header.tile = FirstTile(label.range);
  header.step = label.step;
  header.epoch = label.epoch;
  if (checksum == Checksum::kHeaderAndPayload) header.flags = kTilePayloadCrc;
  return header;
}

// Completes `header` for a tile of `elements` values and writes it to `out`.
void WriteHeader(TileHeader header, const Codec& codec, ByteView encoded,
                 std::byte* out) {
  header.codec = static_cast<uint16_t>(codec.id());
  header.nonzeros = codec.Nonzeros(encoded, header.elements);
  header.payload_bytes = static_cast<uint32_t>(encoded.size());
  if ((header.flags & kTilePayloadCrc) != 0) header.payload_crc = Crc32c(encoded);
  header.header_crc = HeaderCrc(header);
  std::memcpy(out, &header, sizeof(header));
}

// Returns headers from `pool`, followed by the values where they lie: they are their own
// encoding.
Payload Borrow(const Codec& codec, const BlockLabel& label, Slice values,
               Checksum checksum, BufferPool& pool) {
  const uint32_t elements = label.range.elements;
  const size_t width = values.size / elements;
  const Buffer headers = pool.Allocate(sizeof(TileHeader) * TilesOf(elements));
  TileHeader header = FirstHeader(label, checksum);
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    header.elements = TileElements(elements, tile);
    const std::byte* const first = values.data + size_t{tile} * kTileElements * width;
    WriteHeader(header, codec, {first, header.elements * width},
                headers.data() + tile * sizeof(header));
    ++header.tile;
  }
  const size_t padding = Padded(values.size) - values.size;
  Payload payload = {Slice::Of(headers), std::move(values)};
  if (padding > 0) payload.push_back(Slice::Borrowed(ByteView(kZeros, padding)));
  return payload;
}

// Returns an error that names the tile. The message is built only if the function is
// called.
template <typename... Parts>
absl::Status Refuse(const BlockRange& range, uint32_t tile, const Parts&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", range.tensor, " tile ", tile, ": ", what...));
}

const Codec* FindCodec(const CodecSet& codecs, uint16_t id) {
  const auto found = std::ranges::find_if(codecs, [id](const Codec* codec) {
    return static_cast<uint16_t>(codec->id()) == id;
  });
  return found == codecs.end() ? nullptr : *found;
}

absl::Status CheckFlags(const TileHeader& header) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", header.tensor, " tile ", header.tile, ": ", what, "; flags are ",
        header.flags, ", CRCs ", header.payload_crc, " and ", header.view_crc));
  };
  if ((header.flags & ~(kTilePayloadCrc | kTileViewCrc)) != 0) {
    return refuse("unknown flags");
  }
  if ((header.flags & kTilePayloadCrc) == 0 && header.payload_crc != 0) {
    return refuse("payload CRC without its flag");
  }
  if ((header.flags & kTileViewCrc) == 0 && header.view_crc != 0) {
    return refuse("view CRC without its flag");
  }
  return absl::OkStatus();
}

// Makes all checks that need no encoded bytes. Returns the codec of the tile.
absl::StatusOr<const Codec*> CheckHeader(const TileHeader& header,
                                         const BlockLabel& expected, uint32_t tile,
                                         const CodecSet& codecs) {
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
  const Codec* codec = FindCodec(codecs, header.codec);
  if (codec == nullptr) {
    return refuse("codec", header.codec, static_cast<uint16_t>(codecs.front()->id()));
  }
  if (header.tensor != range.tensor) return refuse("tensor", header.tensor, range.tensor);
  if (header.tile != tile) return refuse("tile", header.tile, tile);
  if (header.elements != elements) return refuse("elements", header.elements, elements);
  if (header.nonzeros > elements) return refuse("nonzeros", header.nonzeros, elements);
  if (header.step != expected.step) return refuse("step", header.step, expected.step);
  if (header.epoch != expected.epoch)
    return refuse("epoch", header.epoch, expected.epoch);
  SYNCLINE_RETURN_IF_ERROR(CheckFlags(header));
  if (header.reserved != 0) return refuse("reserved field", header.reserved, 0);
  const size_t limit = codec->MaxEncodedBytes(elements);
  if (header.payload_bytes > limit)
    return refuse("payload bytes", header.payload_bytes, limit);
  return codec;
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
  SYNCLINE_RETURN_IF_ERROR(codec.Validate(encoded, header.elements));
  const uint32_t nonzeros = codec.Nonzeros(encoded, header.elements);
  if (nonzeros == header.nonzeros) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", header.tensor, " tile ", header.tile, ": nonzeros is ",
                   header.nonzeros, ", but the encoding has ", nonzeros));
}

}  // namespace

size_t MaxBlockBytes(const Codec& codec, uint32_t elements) {
  return MaxBlockBytes(CodecSet{&codec}, elements);
}

// Takes the longest encoding of each tile separately: the codec that needs most for a
// whole tile may need less than another for a short one.
size_t MaxBlockBytes(const CodecSet& codecs, uint32_t elements) {
  size_t bytes = 0;
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    size_t most = 0;
    for (const Codec* codec : codecs) {
      most = std::max(most, codec->MaxEncodedBytes(TileElements(elements, tile)));
    }
    bytes += sizeof(TileHeader) + Padded(most);
  }
  return bytes;
}

BlockWriter::BlockWriter(const BlockLabel& label, Checksum checksum,
                         std::shared_ptr<std::byte> memory)
    : elements_(label.range.elements),
      memory_(std::move(memory)),
      header_(FirstHeader(label, checksum)),
      used_(sizeof(TileHeader) * TilesOf(elements_)) {
  CheckRange(label.range);
}

MutableByteView BlockWriter::NextTile(const Codec& codec) {
  SYNCLINE_CHECK(tile_ < TilesOf(elements_));
  codec_ = &codec;
  header_.elements = TileElements(elements_, tile_);
  return {memory_.get() + used_, codec.MaxEncodedBytes(header_.elements)};
}

void BlockWriter::EndTile(size_t encoded_bytes, std::optional<uint32_t> view_crc) {
  SYNCLINE_CHECK(codec_ != nullptr);
  SYNCLINE_CHECK(encoded_bytes <= codec_->MaxEncodedBytes(header_.elements));
  std::byte* room = memory_.get() + used_;
  TileHeader header = header_;
  header.view_crc = view_crc.value_or(0);
  if (view_crc.has_value()) header.flags |= kTileViewCrc;
  WriteHeader(header, *codec_, {room, encoded_bytes},
              memory_.get() + tile_ * sizeof(TileHeader));
  std::memset(room + encoded_bytes, 0, Padded(encoded_bytes) - encoded_bytes);
  used_ += Padded(encoded_bytes);
  codec_ = nullptr;
  ++header_.tile;
  ++tile_;
}

Payload BlockWriter::Finish() {
  SYNCLINE_CHECK(tile_ == TilesOf(elements_));
  const std::byte* bytes = memory_.get();
  return {Slice{bytes, used_, std::move(memory_)}};
}

Payload EncodeBlock(const Codec& codec, const BlockLabel& label,
                    std::span<const float> values, Checksum checksum, BufferPool& pool) {
  CheckRange(label.range);
  SYNCLINE_CHECK(values.size() == label.range.elements);
  if (codec.id() == CodecId::kFp32) {
    return Borrow(codec, label, Slice::Borrowed(std::as_bytes(values)), checksum, pool);
  }
  const Buffer memory = pool.Allocate(MaxBlockBytes(codec, label.range.elements));
  BlockWriter writer(label, checksum, memory.owner());
  for (size_t first = 0; first < values.size(); first += kTileElements) {
    const auto tile =
        values.subspan(first, std::min<size_t>(kTileElements, values.size() - first));
    const MutableByteView room = writer.NextTile(codec);
    writer.EndTile(codec.Encode(tile, {}, ContextAt(label, first), room));
  }
  return writer.Finish();
}

Payload LendBlock(const Codec& codec, const BlockLabel& label, Slice values,
                  Checksum checksum, BufferPool& pool) {
  CheckRange(label.range);
  SYNCLINE_CHECK(values.size == codec.MaxEncodedBytes(1) * label.range.elements);
  Payload payload = Borrow(codec, label, std::move(values), checksum, pool);
  payload.resize(2);  // the caller's zeros are the padding
  payload.back().size = Padded(payload.back().size);
  return payload;
}

Payload Relabel(const Payload& payload, uint32_t elements, uint64_t epoch,
                BufferPool& pool) {
  SYNCLINE_CHECK(payload.size() == 1);
  const Slice& frames = payload.front();
  const size_t bytes = sizeof(TileHeader) * TilesOf(elements);
  SYNCLINE_CHECK(frames.size >= bytes);
  const Buffer headers = pool.Allocate(bytes);
  for (size_t at = 0; at < bytes; at += sizeof(TileHeader)) {
    TileHeader header;
    std::memcpy(&header, frames.data + at, sizeof(header));
    header.epoch = epoch;
    header.header_crc = HeaderCrc(header);
    std::memcpy(headers.data() + at, &header, sizeof(header));
  }
  return {Slice::Of(headers), {frames.data + bytes, frames.size - bytes, frames.owner}};
}

namespace {

absl::Status WrongHeaders(size_t bytes, const BlockLabel& expected) {
  const uint32_t tiles = TilesOf(expected.range.elements);
  return Refuse(expected.range, FirstTile(expected.range), "payload has ", bytes,
                " bytes, but the ", tiles, " headers alone need ",
                tiles * sizeof(TileHeader));
}

// REQUIRES: `headers` has one header for each tile of the block.
absl::StatusOr<BlockView> ParseTiles(ByteView headers, ByteView tiles,
                                     const BlockLabel& expected, const CodecSet& codecs) {
  const BlockRange& range = expected.range;
  size_t used = 0;
  BlockView block;
  for (uint32_t i = 0; i < TilesOf(range.elements); ++i) {
    const uint32_t tile = FirstTile(range) + i;
    TileHeader header;
    std::memcpy(&header, headers.data() + i * sizeof(header), sizeof(header));
    SYNCLINE_ASSIGN_OR_RETURN(const Codec* codec,
                              CheckHeader(header, expected, tile, codecs));
    // No overflow: CheckHeader has bounded payload_bytes.
    const size_t padded_bytes = Padded(header.payload_bytes);
    if (padded_bytes > tiles.size() - used) {
      return Refuse(range, tile, "payload ends after ", tiles.size() - used, " of ",
                    padded_bytes, " bytes");
    }
    const ByteView padded = tiles.subspan(used, padded_bytes);
    const ByteView encoded = padded.first(header.payload_bytes);
    SYNCLINE_RETURN_IF_ERROR(
        CheckEncoded(header, encoded, padded.subspan(header.payload_bytes), *codec));
    TileView view{.codec = codec,
                  .bytes = encoded,
                  .first_element = i * kTileElements,
                  .elements = header.elements};
    if ((header.flags & kTileViewCrc) != 0) view.view_crc = header.view_crc;
    block.tiles.push_back(view);
    used += padded_bytes;
  }
  if (used != tiles.size()) {
    return Refuse(range, FirstTile(range) + TilesOf(range.elements) - 1,
                  tiles.size() - used, " bytes follow the last tile");
  }
  return block;
}

}  // namespace

absl::StatusOr<BlockView> ParseBlock(ByteView payload, const BlockLabel& expected,
                                     const CodecSet& codecs) {
  CheckRange(expected.range);
  const size_t bytes = TilesOf(expected.range.elements) * sizeof(TileHeader);
  if (payload.size() < bytes) return WrongHeaders(payload.size(), expected);
  return ParseTiles(payload.first(bytes), payload.subspan(bytes), expected, codecs);
}

absl::StatusOr<BlockView> ParseBlock(const Landed& payload, const BlockLabel& expected,
                                     const CodecSet& codecs) {
  const auto& [head, body] = payload;
  const ByteView tiles(body.data, body.size);
  if (head.size == 0) return ParseBlock(tiles, expected, codecs);
  CheckRange(expected.range);
  if (head.size != TilesOf(expected.range.elements) * sizeof(TileHeader)) {
    return WrongHeaders(head.size, expected);
  }
  return ParseTiles({head.data, head.size}, tiles, expected, codecs);
}

}  // namespace syncline
