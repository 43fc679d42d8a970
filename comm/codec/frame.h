// The tile frame: a self-describing 64-byte header before each encoded tile
// (docs/wire_format.md).
//
// The payload of a push, seed or publish message for one block is
//   [TileHeader x tiles][encoded tile 0, padded to 64][encoded tile 1, padded to 64]...
// Headers come first so that a dense FP32 block can be sent straight from the tensor's
// own memory.
//
// Parsing believes nothing: magic, version, tensor, tile numbers, element counts,
// lengths, header CRC and (where present) payload CRC are checked against what the
// receiver already knows about the block, before any value is used.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"

namespace syncline {

inline constexpr uint32_t kTileMagic = 0x314c5453;  // "STL1"
inline constexpr uint16_t kTileVersion = 1;
inline constexpr size_t kTileAlignment = 64;

// Little-endian, exactly this layout on the wire.
struct TileHeader {
  uint32_t magic = kTileMagic;
  uint16_t version = kTileVersion;
  uint16_t codec = 0;  // CodecId
  uint32_t tensor = 0;
  uint32_t tile = 0;      // number of the tile inside its tensor
  uint32_t elements = 0;  // n
  uint32_t nonzeros = 0;  // nnz; equals n for dense codecs
  uint64_t step = 0;      // step of a contribution, version of a published view
  uint64_t epoch = 0;
  uint32_t payload_bytes = 0;  // without padding
  uint32_t payload_crc = 0;    // CRC-32C of the payload; 0 unless kTilePayloadCrc is set
  uint32_t flags = 0;
  uint32_t reserved0 = 0;
  uint32_t reserved1 = 0;
  uint32_t header_crc = 0;  // CRC-32C of the 60 bytes before it
};
static_assert(sizeof(TileHeader) == 64);

// The payload CRC is worth its time where bytes cross a network, not inside one host's
// memory.
inline constexpr uint32_t kTilePayloadCrc = 1;

enum class Checksum { kHeaderOnly, kHeaderAndPayload };

// Which block the frames belong to, and under which step and epoch they travel.
struct BlockLabel {
  BlockRange range;
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t seed = 0;  // EncodeContext::seed; not on the wire
};

// The context of the block's elements from number `offset` (inside the block) on.
inline EncodeContext ContextAt(const BlockLabel& label, uint64_t offset) {
  return {.seed = label.seed,
          .step = label.step,
          .tensor = label.range.tensor,
          .first_element = label.range.first_element + offset};
}

// Size of the whole message payload for `elements` values when each tile takes
// codec.MaxEncodedBytes.
size_t MaxBlockBytes(const Codec& codec, uint32_t elements);

// Encodes `values` (the block's elements) with `codec`. The payload owns a buffer from
// `pool`, except that FP32 tiles are borrowed from `values`: then the caller keeps
// `values` unchanged until the send is done (or sends Gather(payload), which owns all).
Payload EncodeBlock(const Codec& codec, const BlockLabel& label, std::span<float> values,
                    Checksum checksum, BufferPool& pool);

// Writes the payload of one block tile by tile, for who encodes the pieces of a tile
// itself.
//
//   BlockWriter writer(codec, label, checksum, memory);
//   for (each tile) {
//     MutableByteView room = writer.NextTile();
//     writer.EndTile(codec.Encode(tile, ContextAt(label, first_of_tile), room));
//   }
//   Payload payload = writer.Finish();
class BlockWriter {
 public:
  // `memory` holds MaxBlockBytes(codec, label.range.elements); the payload shares it.
  BlockWriter(const Codec& codec, const BlockLabel& label, Checksum checksum,
              std::shared_ptr<std::byte> memory);

  // Room for the next tile: codec.MaxEncodedBytes of its elements.
  MutableByteView NextTile();
  // The first `encoded_bytes` of the room are the encoding.
  void EndTile(size_t encoded_bytes);
  // REQUIRES: EndTile was called for every tile.
  Payload Finish();

 private:
  const Codec& codec_;
  const uint32_t elements_;
  std::shared_ptr<std::byte> memory_;
  TileHeader header_;
  uint32_t tile_ = 0;  // number inside the block
  size_t used_;
};

// One checked tile of a received block; `bytes` points into the received payload.
struct TileView {
  ByteView bytes;
  uint32_t first_element = 0;  // inside the block
  uint32_t elements = 0;
};

// A received and fully checked block.
struct BlockView {
  const Codec* codec = nullptr;
  absl::InlinedVector<TileView, kTilesPerBlock> tiles;  // no allocation
};

// Checks everything that `expected` and `codec` allow to check, including Codec::Validate
// on each tile. InvalidArgument / DataLoss (CRC) say which tile and field was wrong. The
// step and epoch in the frames must equal those of `expected`.
absl::StatusOr<BlockView> ParseBlock(ByteView payload, const BlockLabel& expected,
                                     const Codec& codec);

}  // namespace syncline
